"""The container that returns results of up to 64 KB by its log, without I/O.

Kubernetes keeps 12 KiB of termination messages for all containers of a pod. This container shares a directory with the
program. The node stops it after the program has ended; it then prints the result, and leaves the size in its
termination message, so that its log is read only if there is a result. It is a native sidecar, so its own end does not
count for Jobs.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers.kubernetes.containers import SideContainer
from airflow_provider_launch.schedulers.result_document import XCOM_PATH
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.untrusted import UntrustedError, one_line, parse_int

NAME = "launch-result"
LIMIT_BYTES = 64 * 1024
"""Maximum bytes of a result."""
ERROR_PATH = "/dev/termination-log"
"""The termination message of a program whose result is in the shared directory."""
LOG_LINES = 1400
"""A result of `LIMIT_BYTES` has 1151 lines of base64."""
LOG_BYTES = 4 * LIMIT_BYTES
CANNOT_START = frozenset({"RunContainerError", "CrashLoopBackOff", "CreateContainerError", "StartError"})
"""Reasons of a container whose image lacks a program."""
_FOLDER = posixpath.dirname(XCOM_PATH)
_READY = f".{NAME}"
_BEGIN, _END = f"{NAME} begin", f"{NAME} end"
_NONE, _IRREGULAR, _UNREADABLE, _FAILED = "none", "irregular", "unreadable", "failed"
_NOBODY = 65534
# The program starts only after this. Without it, a program could end before the shell can take TERM.
_WAIT = f"until [ -e {_FOLDER}/{_READY} ]; do sleep 1; done; rm -f {_FOLDER}/{_READY}"


def result_script(folder: str = _FOLDER, report: str = ERROR_PATH) -> str:
    """Return the script of the container, which shares `folder` with the program."""
    file = posixpath.join(folder, posixpath.basename(XCOM_PATH))
    return f"""\
report() {{ echo "$1" >{report}; }}
for program in base64 head rm sleep wc; do
  command -v $program >/dev/null || {{ report "its image has no program '$program'"; exit 127; }}
done
end() {{
  trap '' TERM
  kill $! 2>/dev/null
  f={file} found={_FAILED}
  if [ ! -e $f ] && [ ! -L $f ]; then found={_NONE}
  elif [ -L $f ] || [ ! -f $f ]; then found={_IRREGULAR}
  elif [ ! -r $f ]; then found={_UNREADABLE}
  elif size=$(wc -c <$f); then
    [ $size -gt {LIMIT_BYTES} ] || {{ echo '{_BEGIN}' && head -c {LIMIT_BYTES} $f | base64 && echo '{_END}'; }} &&
      found=$(($size))
  fi
  report $found
  exit 0
}}
trap end TERM
: >{folder}/{_READY}
while :; do
  sleep 3600 &
  wait $!
done
"""


def with_result(
    pod: Mapping[str, Any], main: Mapping[str, Any], image: str, security: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec of a pod with the container that returns the result, and the main container.

    `security` is the option of that name, after the check of the namespace.
    """
    mount = {"name": NAME, "mountPath": _FOLDER}
    container: dict[str, Any] = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": main.get("imagePullPolicy", "IfNotPresent"),
        "restartPolicy": "Always",
        "command": ["sh", "-c", result_script().replace("$", "$$")],  # Kubernetes replaces `$$` by `$`
        "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", _WAIT]}}},
        # A runtime of NVIDIA gives all GPUs to an image that asks for them.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        # Requests equal limits, so that a pod of the class Guaranteed stays one.
        "resources": {"limits": {"cpu": "100m", "memory": "32Mi"}},
        "terminationMessagePolicy": "File",
        "volumeMounts": [mount],
    }
    if security != "none":
        container["securityContext"] = {"allowPrivilegeEscalation": False}
    if security == "restricted":
        container["securityContext"]["capabilities"] = {"drop": ["ALL"]}
        if (pod.get("securityContext") or {}).get("runAsUser") is None:
            container["securityContext"]["runAsUser"] = _NOBODY
    whole = {
        **pod,
        "initContainers": [*(pod.get("initContainers") or []), container],
        "volumes": [*(pod.get("volumes") or []), {"name": NAME, "emptyDir": {}}],
    }
    return whole, {**main, "volumeMounts": [*(main.get("volumeMounts") or []), mount]}


def size_of(container: SideContainer, replica: str) -> int | None:
    """Return the size of the result in bytes as the ended container has reported it; None without a result."""
    report = container.message.strip()
    if container.exit_code == 0:
        if report == _NONE:
            return None
        if report == _IRREGULAR:
            raise InvalidAppError(
                f"the result of {replica} is not a plain file; write one JSON document to LAUNCH_RESULT_PATH"
            )
        if report == _UNREADABLE:
            raise InvalidAppError(
                f"the result of {replica} cannot be read by container {NAME!r}, which runs as another user; let the "
                f"program write a file that all may read, or set option run_as_user"
            )
        try:
            return parse_int(report)
        except UntrustedError:
            report = report or "no report"
    raise InvalidAppError(
        f"the result of {replica} is lost: {container.end}"
        + (f" ({container.reason})" if container.reason not in {"", "Error", "Completed", "OOMKilled"} else "")
        + (f": {one_line(report, 200)}" if report else "")
        + "; run the app again, or write the result to a volume or an object store"
    )


def result_bytes(log: bytes, size: int) -> bytes | None:
    """Return the result of `size` bytes in the last lines of the container's log; None if a part is missing."""
    _, begin, rest = log.decode("ascii", "replace").rpartition(f"{_BEGIN}\n")
    text, end, _ = rest.partition(f"{_END}\n")
    if not (begin and end):
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error):
        return None
    return data if len(data) == size else None
