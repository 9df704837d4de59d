"""Builds the shell script that runs a program: number, signals, exit code, result and end of the log. Pure.

Batch gives all children of an array and all nodes of a range the same command and environment; only their number
differs. It returns an exit code, but no result.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_launch.schedulers.environment import RANK0_ENV
from airflow_provider_launch.schedulers.result_document import XCOM_PATH

REPLICA = "\x00replica\x00"
"""Placeholder for the number of the replica, which is known only when it runs."""
RANK0 = "\x00rank0\x00"
"""Placeholder for the host of replica 0, the same."""
RESULT_PATH = "/tmp/launch-result.json"  # noqa: S108 - in the container, which has no other users
ERROR_PATH = "/tmp/launch-error.json"  # noqa: S108 - the same
_RESULT_CHARS = 4200
_READ_BYTES = 20_000
"""Maximum bytes of a file: the shell's `read` is too slow for a long line, because it reads one byte at a time."""


def is_for_node(text: str) -> bool:
    """Return whether the text contains a value that only the running replica knows."""
    return REPLICA in text or RANK0 in text


@dataclass(frozen=True)
class Script:
    """The script of a role."""

    mark: str
    index: str
    """Shell arithmetic for the number of the replica: `0`, `AWS_BATCH_JOB_ARRAY_INDEX`."""
    exports: Mapping[str, str]
    """Variables that contain the number of the replica or are empty; Batch drops empty ones."""
    odd_env: Mapping[str, str]
    """Variables whose names a shell does not accept and may drop."""
    working_dir: str | None
    has_result: bool
    """Whether the replicas may return results."""
    counts_attempts: bool
    """Whether an attempt of Batch is an attempt of the replica."""
    is_node: bool
    linger_s: int
    """Seconds for which replica 0 keeps running after its success."""

    def command(self, program: str, args: Sequence[str]) -> list[str]:
        """Return the command of the container."""
        words = [program, *args]
        if not any(map(is_for_node, words)):
            return ["sh", "-c", self._text(""), *words]
        known = f"set -- {' '.join(map(_quoted, args))}\n" if args else ""
        if is_for_node(program):
            raise ValueError("the program must be the same for all replicas")
        return ["sh", "-c", self._text(known), program]

    def _text(self, set_args: str) -> str:
        lines = [f"i=$(({self.index}))", "export LAUNCH_REPLICA_ID=$i"]
        if self.counts_attempts:
            lines.append("export LAUNCH_ATTEMPT=$((${AWS_BATCH_JOB_ATTEMPT:-1}-1))")
        if self.is_node:
            lines.append(_RANK0)
        lines.append(f"export TORCHELASTIC_ERROR_FILE={ERROR_PATH}")
        if self.has_result:
            lines.append(f"export LAUNCH_RESULT_PATH={RESULT_PATH}")
        lines += [f"export {name}={_quoted(text)}" for name, text in self.exports.items()]
        if self.working_dir:
            lines.append(f"cd {shlex.quote(self.working_dir)} || exit 126")
        odd = [_quoted(f"{name}={text}") for name, text in self.odd_env.items()]
        run = (
            _RUN.replace("@ENV@", f"env -- {' '.join(odd)} " if odd else "")
            .replace("@MARK@", self.mark)
            .replace("@MOST@", str(_RESULT_CHARS))
            .replace("@READ@", str(_READ_BYTES))
        )
        text = "\n".join(lines) + "\n" + set_args + run
        text += "f error $TORCHELASTIC_ERROR_FILE\n"
        if self.has_result:
            text += f"test -s $LAUNCH_RESULT_PATH || LAUNCH_RESULT_PATH={XCOM_PATH}\n"
            text += "f result $LAUNCH_RESULT_PATH\n"
        text += 'echo "$m-end"\n'
        if self.linger_s:
            text += f"test $c$i != 00 || {{ trap 'exit 0' TERM; sleep {self.linger_s} & wait $!; }}\n"
        return text + "exit $c"


# The main node lacks this variable. Use its own address: a server that binds to `localhost` could not be reached.
_RANK0 = """\
h=$AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS
if test -z "$h"; then
h=localhost
{ read -r n && while read -r a b _; do test "$b" != "$n" || h=$a; done </etc/hosts; } 2>/dev/null </etc/hostname
fi
export TORCHX_RANK0_HOST=$h"""

# The script forwards a signal to the program and waits again, because the program's exit code counts. Both streams get
# a mark, so that the end of each is known, and whether its last line was complete. The shell has its own stderr,
# because some shells print a message when a signal ends a child.
_RUN = """\
m=@MARK@
echo "$m-begin"
trap 's=TERM; test -z "$p" || kill -TERM $p' TERM
trap 's=INT; test -z "$p" || kill -INT $p' INT
exec 3>&2 2>/dev/null
@ENV@"$0" "$@" 2>&3 3>&- & p=$!
test -z "$s" || kill -$s $p
wait $p; c=$?
while test "$s"; do s=; wait $p; d=$?; test $d = 127 || c=$d; done
trap '' TERM INT
echo "$m-exit:$c"; echo "$m-exit:$c" >&3
g() {
n=0
while IFS= read -r l || test "$l"; do
n=$((n+${#l}+1)); test $n -le @MOST@ || { echo "$m-$1-large"; return; }
printf '%s\\n' "$m-$1:$l"
done
}
f() {
test -f "$2" && test -s "$2" || return 0
if command -v head >/dev/null; then head -c @READ@ "$2" | g $1; else g $1 <"$2"; fi
}
"""


def _quoted(text: str) -> str:
    pieces = re.split(f"({REPLICA}|{RANK0})", text)
    return "".join(_VALUES.get(piece) or shlex.quote(piece) for piece in pieces if piece) or "''"


_VALUES = {REPLICA: '"$i"', RANK0: f'"${RANK0_ENV}"'}
"""Placeholder to the shell's variable."""
