"""Parts for schedulers of plug-ins, with names that stay: refusals, messages, ids, lines of log files, claims.

For a queue of jobs, extend `schedulers.queue.QueueScheduler`, which uses all of them.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd, ending_text, failure_message
from airflow_provider_launch.schedulers._kit.file_log import CHUNK_BYTES, open_file
from airflow_provider_launch.schedulers._kit.refusals import refuse_other_spec
from airflow_provider_launch.schedulers._kit.refusals import refuse_unsupported as _refuse_unsupported
from airflow_provider_launch.schedulers.api import Capability, Scheduler
from airflow_provider_launch.schedulers.environment import RANK0_ENV, replica_env
from airflow_provider_launch.schedulers.ids import make_unique, slug
from airflow_provider_launch.schedulers.local.processes import try_lock
from airflow_provider_launch.schedulers.logs import LONGEST_LINE, MOST_LINES, split_lines
from airflow_provider_launch.schedulers.masking import masked_args, masked_env
from airflow_provider_launch.schedulers.result_document import parse_result
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.specs.errors import UnsupportedError
from airflow_provider_launch.specs.owner import owner_of
from airflow_provider_launch.specs.roles import AppDef

__all__ = [
    "RANK0_ENV",
    "ReplicaEnd",
    "claim",
    "ending_text",
    "failure_message",
    "lines_after",
    "make_unique",
    "masked_args",
    "masked_env",
    "owner_of",
    "parse_result",
    "refuse_other_spec",
    "refuse_unsupported",
    "replica_env",
    "slug",
    "spec_hash",
    "split_lines",
]


def refuse_unsupported(app: AppDef, scheduler: Scheduler[Any], *, needs_image: bool = True) -> None:
    """Refuse features of the app that are not in `scheduler.capabilities`, and all of `resource.devices`.

    Call it first in `_submit_dryrun`, because no other code refuses them.

    Args:
        app: the app to launch.
        scheduler: the scheduler, for its capabilities and its name.
        needs_image: whether each role must have an image.

    Raises:
        UnsupportedError: a role uses a feature that this scheduler lacks.
        InvalidAppError: a role has no image, or its arguments and variables are too large.
    """
    _refuse_unsupported(app, scheduler.backend, scheduler.capabilities, needs_image=needs_image, cures={})
    for role in app.roles:
        devices = f"resource.devices ({', '.join(role.resource.devices)})" if role.resource.devices else ""
        has_workspaces = Capability.WORKSPACE in scheduler.capabilities
        for what in filter(None, [devices, "workspace" if role.workspace and not has_workspaces else ""]):
            raise UnsupportedError(
                f"role {role.name!r}: {what} is not offered by {scheduler.backend!r}; leave it out, or choose another "
                f"scheduler"
            )


def lines_after(path: str, position: int, *, has_ended: bool) -> tuple[list[str], int]:
    """Return the next lines of a file that only grows, and the position after them: a chunk, not all of a large file.

    Args:
        path: the file; if it does not exist, there are no lines.
        position: the end of the lines that were returned before, in bytes; 0 at first.
        has_ended: whether the program had ended before this call; then text after the last newline is a line too.
    """
    with open_file(path) as file:
        if file is None or position >= file.size:
            return [], position
        data = file.read(position, min(CHUNK_BYTES, file.size - position))
        while b"\n" not in data and position + len(data) < file.size and len(data) < LONGEST_LINE:
            data += file.read(position + len(data), CHUNK_BYTES)
        is_all = position + len(data) >= file.size
    end = data.rfind(b"\n") + 1
    # Text at the end of the file is complete only after the end of the program.
    if (is_all and has_ended) or (not end and len(data) >= LONGEST_LINE):
        end = len(data)
    # Only line feeds end a line.
    lines = data[:end].split(b"\n")
    whole = [*(line + b"\n" for line in lines[:-1]), *filter(None, lines[-1:])][:MOST_LINES]
    texts = [line.decode("utf-8", "replace") for line in whole]
    return texts, position + sum(map(len, whole))


def claim(path: str) -> int | None:
    """Lock a file, which is created if it does not exist; None if another process has locked it.

    At most one process has the lock of a path, also on a network file system with locks. It ends when the returned
    descriptor is closed, or when the process ends, even by KILL. Check then whether another process did the work.
    """
    return try_lock(path)
