"""The script that runs a shell command and returns the variables that it exports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from airflow_provider_launch.pipelines.parameters import as_text

# awk, because every image with a shell has it; it can read the environment and write JSON.
_HAND_BACK = r"""launch_hand_back() {
  launch_code=$?
  trap - EXIT
  if [ "$launch_code" -eq 0 ] && [ -n "$LAUNCH_RESULT_PATH" ] && ! [ -s "$LAUNCH_RESULT_PATH" ]; then
    awk -v wanted='@NAMES@' '
      function quoted(text,  at, sign, found) {
        for (at = 1; at <= length(text); at++) {
          sign = substr(text, at, 1)
          if (sign == "\\" || sign == "\"") sign = "\\" sign
          else if (sign == "\n") sign = "\\n"
          else if (sign == "\t") sign = "\\t"
          else if (sign == "\r") sign = "\\r"
          found = found sign
        }
        return "\"" found "\""
      }
      function take(name,  bare) {
        bare = name
        sub(/^(MAGNUS_PRM_|RUNNABLE_PRM_|LAUNCH_PARAM_)/, "", bare)
        if (!(name in ENVIRON) || name in taken) return
        if (index("\n" given "\n", "\n" bare "=" quoted(ENVIRON[name]) "\n")) return
        taken[name] = 1
        out = out (out == "" ? "" : ", ") quoted(name) ": " quoted(ENVIRON[name])
      }
      BEGIN {
        given = ENVIRON["LAUNCH_GIVEN"]
        for (at = 0; ("LAUNCH_GIVEN_" at) in ENVIRON; at++) given = given ENVIRON["LAUNCH_GIVEN_" at]
        count = split(wanted, names, " ")
        for (at = 1; at <= count; at++) {
          take(names[at]); take("MAGNUS_PRM_" names[at]); take("RUNNABLE_PRM_" names[at])
          take("LAUNCH_PARAM_" names[at])
        }
        if (!count) for (name in ENVIRON) if (name ~ /^(MAGNUS_PRM_|RUNNABLE_PRM_|LAUNCH_PARAM_)./) take(name)
        printf "{\"$env\": {%s}}", out
      }' </dev/null >"$LAUNCH_RESULT_PATH" || launch_code=$?
  fi
  exit "$launch_code"
}
trap launch_hand_back EXIT
"""


def shell_script(command: str, returns: Iterable[str] | None) -> str:
    """Return a script that runs `command` and then returns the environment variables that it changed.

    The exit code is that of the command, which may end in a comment or a here-document. If a
    command writes to LAUNCH_RESULT_PATH itself, that result is kept.

    Args:
        command: for a POSIX shell.
        returns: the variables to return, with or without the prefix of a parameter. None: all with a prefix.
    """
    names = None if returns is None else list(returns)
    if names == []:
        return command
    return f"{_HAND_BACK.replace('@NAMES@', ' '.join(names or ()))}{command}\nlaunch_hand_back\n"


def given_lines(parameters: Mapping[str, object]) -> str:
    """Return the parameters for the comparison in the script: a name and its quoted text per line."""
    return "\n".join(f"{name}={json.dumps(as_text(value), ensure_ascii=False)}" for name, value in parameters.items())
