"""The script that runs a shell command and returns the variables that it exports."""

from __future__ import annotations

from collections.abc import Container, Iterable

# The functions and the command are separate arguments, so that errors of the command have its own line numbers.
_RUN = 'eval "$1"; launch_command=$2; shift 2; eval "$launch_command"; launch_hand_back'
# awk, because every image with a shell has it; it can read the environment and write JSON. Parameters of the run that
# the command left alone are not returned: they may be larger than a result, and a later branch would hide a change by
# an earlier one. Other declared variables are: only the launch knows values such as those of `args`, and a command may
# export the same value again. A further line of a value starts with a blank, so that no value looks like another
# variable.
_FUNCTIONS = r"""launch_given=$(awk 'BEGIN {
  for (name in ENVIRON) { text = ENVIRON[name]; gsub(/\n/, "\n ", text); print name "=" text "\n" }
}') || :
launch_hand_back() {
  launch_code=$?
  if [ "$launch_code" -eq 0 ] && [ -z "${launch_is_done:-}" ] && [ -n "${LAUNCH_RESULT_PATH:-}" ]; then
    launch_is_done=1
    [ -s "$LAUNCH_RESULT_PATH" ] || printf '%s\n' "$launch_given" | awk -v wanted='@NAMES@' '
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
      function take(name, is_new,  text) {
        if (!(name in ENVIRON) || name in taken) return
        text = ENVIRON[name]
        gsub(/\n/, "\n ", text)
        if (!is_new && index(given "\n\n", "\n" name "=" text "\n\n")) return
        taken[name] = 1
        out = out (out == "" ? "" : ", ") quoted(name) ": " quoted(ENVIRON[name])
      }
      { given = given "\n" $0 }
      END {
        count = split(wanted, names, " ")
        for (at = 1; at <= count; at++) {
          take(names[at], index(" @OWN@ ", " " names[at] " "))
          take("MAGNUS_PRM_" names[at]); take("RUNNABLE_PRM_" names[at]); take("LAUNCH_PARAM_" names[at])
        }
        for (name in ENVIRON) if (name ~ /^MAGNUS_TRACK_./) take(name)
        if (!count) for (name in ENVIRON) if (name ~ /^(MAGNUS_PRM_|RUNNABLE_PRM_|LAUNCH_PARAM_)./) take(name)
        printf "{\"$env\": {%s}}", out
      }' >"$LAUNCH_RESULT_PATH" || launch_code=$?
    @PACK@ || :
  fi
  exit "$launch_code"
}
trap launch_hand_back EXIT
"""


def shell_arguments(
    command: str, returns: Iterable[str] | None, pack: str = ":", parameters: Container[str] = ()
) -> list[str]:
    """Return the arguments of a shell that runs `command` and then returns the environment variables that it changed.

    The exit code is that of the command, which may end in a comment or a here-document. If a
    command writes to LAUNCH_RESULT_PATH itself, that result is kept.

    Args:
        command: for a POSIX shell.
        returns: the variables to return, with or without the prefix of a parameter. None: all with a prefix.
        pack: a command that packs a large result in place.
        parameters: the variables that are returned only if the command changed them.
    """
    names = None if returns is None else list(returns)
    if names == []:
        return ["-c", command]
    own = [name for name in names or () if name not in parameters]
    functions = _FUNCTIONS.replace("@NAMES@", " ".join(names or ())).replace("@OWN@", " ".join(own))
    functions = functions.replace("@PACK@", pack)
    return ["-c", _RUN, "sh", functions, command]
