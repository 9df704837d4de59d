"""The store of the apps of one cluster: runs the scripts through a transport and parses their output."""

from __future__ import annotations

import logging
import shlex
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_launch.schedulers._kit.refusals import deleted_meanwhile, refuse_other_spec
from airflow_provider_launch.schedulers.slurm import commands
from airflow_provider_launch.schedulers.slurm.records import (
    Account,
    Attempt,
    Observation,
    damage_text,
    parse_accounts,
    parse_attempts,
    parse_ends,
    parse_observation,
)
from airflow_provider_launch.schedulers.slurm.request import SlurmRequest, request_from
from airflow_provider_launch.schedulers.slurm.script import APP_BYTES, APP_PARTS, app_files, packed
from airflow_provider_launch.schedulers.slurm.transport import AnswerTooLargeError
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    UnknownAppException,
)
from airflow_provider_launch.util.untrusted import UntrustedError, parse_json, refuse_parts

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.slurm.options import SlurmConnection
    from airflow_provider_launch.schedulers.slurm.transport import Answer, Transport

log = logging.getLogger(__name__)

_PERMANENT = ("permission denied", "not a directory", "read-only file system", "file name too long")
_UNREACHED = (
    "unable to contact slurm controller",
    "communication connection failure",
    "connection refused",
    "connection timed out",
    "timed out",
    "zero bytes were transmitted",
    "temporarily unable",
    "resource temporarily unavailable",
    "backup controller",
)

_NO_ACCOUNTS_S = 60.0
_BYTES_PER_S = 1_000_000
"""Minimum speed of a connection, from which the time limit of an upload is computed."""
_BATCH = 500
"""Maximum number of files, apps or jobs of one script: it starts some processes for each file, and the length of a
command is limited."""
_MOST_NAMES = 300_000
"""Maximum records of attempts of one app; enough for ten attempts of ten thousand replicas."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class FilePart:
    """A part of a file of an app."""

    is_plain: bool
    """Whether it is a plain file of this user and not behind a link; other files are not opened."""
    data: bytes
    size: int
    inode: int
    modified_ms: int


class Store:
    """Runs the scripts of `commands`, and translates their exit codes into errors."""

    def __init__(self, connection: SlurmConnection, transport: Transport) -> None:
        self._connection = connection
        self._transport = transport
        self._no_accounts_until = 0.0

    def submit(self, request: SlurmRequest) -> None:
        """Create the app and its job, or adopt them."""
        nonce = uuid.uuid4().hex
        for files in request.workspaces.values():
            log.info("copying %s to the cluster", files)
        tar = packed(app_files(request, instance=uuid.uuid4().hex), request.workspaces)
        options = [*request.components[0]]
        for component in request.components[1:]:
            options += [":", "--hold", *component]
        comment = request.comment.replace("\n", " ")
        args = (request.app_id, nonce, request.spec_hash, comment, *options)
        answer = self._run(
            commands.SUBMIT,
            *args,
            stdin=tar,
            codes={commands.CONFLICT, commands.REFUSED, commands.GONE, commands.DAMAGED},
        )
        if answer.code == commands.DAMAGED:
            raise AppUnavailableError(damage_text(request.app_id, "id is not the file that was written"))
        if answer.code == commands.CONFLICT:
            refuse_other_spec("slurm", request.app_id, request.spec_hash, None)
        if answer.code == commands.GONE:
            raise deleted_meanwhile(request.app_id)
        if answer.code == commands.REFUSED:
            self.remove([request.app_id])
            self._refuse(answer.error, f"Slurm refuses app {request.app_id!r}")

    def observe(self, app_ids: Iterable[str] | None) -> Observation:
        """Return all jobs, and the records of these apps; None means all apps."""
        ids = "" if app_ids is None else "".join(f"{app_id}\n" for app_id in app_ids)
        answer = self._run(commands.OBSERVE, "all" if app_ids is None else "some", stdin=ids.encode())
        try:
            return parse_observation(answer.out.decode("utf-8", "replace"))
        except ValueError as error:
            raise self._unreadable(error) from error

    def attempts(self, app_ids: Sequence[str]) -> dict[str, list[Attempt] | str]:
        """Return the attempts of each app, or an error text."""

        def ask(some: Sequence[str]) -> dict[str, list[Attempt] | str]:
            paths = "".join(f"{app_id}/status\n" for app_id in some)
            names: dict[str, list[str]] = {app_id: [] for app_id in some}
            for path in self._run(commands.STATUS, stdin=paths.encode()).out.decode("utf-8", "replace").split("\0"):
                app_id, _, rest = path.partition("/")
                if app_id in names:
                    names[app_id].append(rest.partition("/")[2])
            return {
                app_id: _too_many(app_id) if len(found) > _MOST_NAMES else parse_attempts(found)
                for app_id, found in names.items()
            }

        return _divided(app_ids, ask, _too_many)

    def read(self, paths: Sequence[str], limit: int, *, whole: bool = False) -> dict[str, FilePart]:
        """Return up to `limit` bytes of each file that exists, by its path below the directory of all apps.

        With `whole` no data of a file that is larger than the limit is read.
        """

        def ask(some: Sequence[str]) -> dict[str, FilePart]:
            lines = "".join(f"{path}\n" for path in some)
            data = self._run(commands.READ, str(limit), "whole" if whole else "", stdin=lines.encode()).out
            return self._files(data)

        found = {}
        for at in range(0, len(paths), _BATCH):
            found.update(_divided(paths[at : at + _BATCH], ask))
        return found

    def requests(self, app_ids: Iterable[str]) -> dict[str, tuple[str, SlurmRequest, int] | str]:
        """Return identity, request and bytes of the record of each app that exists, or an error text."""
        found = self.read([f"{app_id}/app.json" for app_id in app_ids], APP_BYTES, whole=True)
        return {path.partition("/")[0]: _request_in(path.partition("/")[0], file) for path, file in found.items()}

    def accounts(self, app_ids: Sequence[str]) -> list[Account]:
        """Return how jobs of these apps ended; empty if the cluster has no accounting, or it does not answer.

        Accounting only adds details, so its failure is not an error of Slurm. It is asked again after a minute.
        """
        return [one for at in range(0, len(app_ids), _BATCH) for one in self._accounts(app_ids[at : at + _BATCH])]

    def _accounts(self, app_ids: Sequence[str]) -> list[Account]:
        if time.monotonic() < self._no_accounts_until:
            return []
        answer = self._run(commands.ACCOUNTS, ",".join(app_ids), codes={commands.NO_ACCOUNTS})
        if answer.code == commands.NO_ACCOUNTS:
            self._no_accounts_until = time.monotonic() + _NO_ACCOUNTS_S
            # sacct also fails if the cluster has no accounting.
            if "accounting storage is disabled" not in answer.error:
                log.warning(
                    "Slurm's accounting does not answer (%s); apps end without its details", answer.error.strip()
                )
            return []
        return parse_accounts(answer.out.decode("utf-8", "replace"))

    def mark_ends(self, ends: Sequence[tuple[str, str, str]]) -> dict[str, str | None]:
        """Record the ends that an observer found, and return the recorded end of each app.

        This is an earlier end if another observer was faster, and None if a program has written something else there.
        `ends` are triples of app id, value with which to claim the app (empty if it is claimed), and text of the end.
        """
        lines = "".join("|".join(end) + "\n" for end in ends)
        if not lines:
            return {}
        text = self._run(commands.MARK_END, stdin=lines.encode()).out.decode("utf-8", "replace")
        return parse_ends(text, {app_id for app_id, _, _ in ends})

    def discard(self, jobs: Sequence[str]) -> None:
        """Cancel held jobs of ended apps, whose submitter was killed before it could do so."""
        for at in range(0, len(jobs), _BATCH):
            self._run(commands.DISCARD, *jobs[at : at + _BATCH])

    def cancel(self, app_id: str, mark: str) -> bool:
        """Mark the app and end its job; return whether the app exists."""
        return self._run(commands.CANCEL, app_id, mark, codes={commands.GONE}).code != commands.GONE

    def remove(self, app_ids: Iterable[str]) -> None:
        """Remove the directories of apps that have ended."""
        ids = "".join(f"{app_id}\n" for app_id in app_ids)
        if ids:
            self._run(commands.REMOVE, uuid.uuid4().hex, stdin=ids.encode())

    def logs(
        self, app_id: str, role: int, k: int, parts: Sequence[tuple[str, int, int]]
    ) -> tuple[bool, list[Attempt], dict[str, FilePart]]:
        """Return whether the app has ended, the attempts of one replica, and the requested parts of plain files.

        `parts` are path below the app, offset and limit of each file.

        Raises:
            UnknownAppException: the app does not exist.
            AppUnavailableError: its programs have written records that cannot be parsed.
        """
        flat = [str(item) for path, *numbers in parts for item in (f"{app_id}/{path}", *numbers)]
        answer = self._run(commands.LOGS, app_id, str(role), str(k), *flat, codes={commands.GONE}, can_wait=True)
        if answer.code == commands.GONE:
            raise UnknownAppException(app_id)
        # A program can name a record `start,0,0,0,files`.
        head, _, data = (b"\n" + answer.out).partition(b"\nfiles\n")
        names = head.decode("utf-8", "replace").split("\n")
        try:
            found = dict(_framed(data))
        except ValueError as error:
            raise AppUnavailableError(f"the files of app {app_id!r} cannot be read: {error}") from error
        files = {path.partition("/")[2]: file for path, file in found.items() if file.is_plain}
        return "end" in names, parse_attempts(names), files

    def probe(self, *, mount: str | None, with_node: bool) -> str:
        """Check the host and the directory, and return a summary.

        Raises:
            SchedulerRejectedError: names the missing part and its host.
        """
        mark = uuid.uuid4().hex
        limit = max(1, int(self._connection.timeout_s) - 5)
        answer = self._run(commands.PROBE, mark, "yes" if with_node else "", str(limit), codes={commands.REFUSED})
        if answer.code == commands.REFUSED:
            self._refuse(answer.error, f"{self._transport.host} cannot launch")
        name = f"building/probe.{mark}"
        is_seen = mount is None or (Path(mount).expanduser() / name).exists()
        self._run(f'case $1 in "~/"*) cd;; esac; rm -f "${{1#"~/"}}/{name}"; exit 0')
        if not is_seen:
            raise SchedulerRejectedError(
                f"files that {self._transport.host} writes below {self._connection.root!r} are not visible on the "
                f"worker below {mount!r}; correct or leave out mount in the connection"
            )
        version = answer.out.decode("utf-8", "replace").strip()
        tried = "; a node wrote a file that was read back" if with_node else ""
        return f"{version} answers on {self._transport.host}, which can write {self._connection.root!r}{tried}"

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _run(
        self, script: str, *args: str, stdin: bytes = b"", codes: Iterable[int] = (), can_wait: bool = False
    ) -> Answer:
        where = self._connection
        lines = [f"export SLURM_CONF={shlex.quote(where.slurm_conf)}\n"] if where.slurm_conf else []
        if where.slurm_bin:
            lines.append(f"PATH={shlex.quote(where.slurm_bin)}:$PATH\n")
        # A workspace may be large, and the connection slow.
        timeout_s = where.timeout_s + len(stdin) // _BYTES_PER_S
        answer = self._transport.run(
            "".join(lines) + script, where.root, *args, stdin=stdin, timeout_s=timeout_s, can_wait=can_wait
        )
        if answer.code == 0 or answer.code in codes:
            return answer
        text = answer.error.strip() or f"exit code {answer.code}"
        if answer.code == commands.FOREIGN:
            raise SchedulerRejectedError(
                f"the directory {where.root!r} is open to other users on {self._transport.host}: {text}; files that "
                f"they write there would run as this user; let root be a directory that only this user can write "
                f"(chown, 'chmod go-w'), or choose another one in the connection"
            )
        if answer.code == commands.UNUSABLE:
            if any(word in text.lower() for word in _PERMANENT):
                raise SchedulerRejectedError(
                    f"the directory {where.root!r} cannot be used on {self._transport.host}: {text}; "
                    f"choose another root in the connection"
                )
            raise SchedulerUnavailableError(
                f"the directory {where.root!r} is unavailable on {self._transport.host}: {text}"
            )
        if "not found" in text.lower() and "squeue" in text:
            raise SchedulerRejectedError(
                f"{self._transport.host} has no commands of Slurm: {text}; set slurm_bin in the connection"
            )
        raise SchedulerUnavailableError(f"Slurm does not answer on {self._transport.host}: {text}")

    def _files(self, data: bytes) -> dict[str, FilePart]:
        try:
            return dict(_framed(data))
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: ValueError) -> SchedulerUnavailableError:
        return SchedulerUnavailableError(f"the answer of {self._transport.host} cannot be parsed: {error}")

    def _refuse(self, error: str, what: str) -> None:
        text = error.strip().replace("\n", "; ") or "without a reason"
        if any(word in text.lower() for word in _UNREACHED):
            raise SchedulerUnavailableError(f"{what} for now: {text}")
        raise SchedulerRejectedError(f"{what}: {text}")


def _too_many(app_id: str) -> str:
    return damage_text(app_id, f"status has more than {_MOST_NAMES} records of attempts")


def _request_in(app_id: str, file: FilePart) -> tuple[str, SlurmRequest, int] | str:
    if not file.is_plain:
        return damage_text(app_id, "app.json is not a plain file of this user")
    if file.size > APP_BYTES:
        return damage_text(app_id, f"app.json has {file.size} bytes; at most {APP_BYTES} are possible")
    try:
        refuse_parts(file.data, APP_PARTS)
        document = parse_json(file.data, APP_BYTES)
        request = request_from(document["request"])
        return f"{request.spec_hash}:{document['instance']}", request, len(file.data)
    except UntrustedError as error:
        return damage_text(app_id, f"app.json: {error}")
    except Exception as error:  # noqa: BLE001 - any text in place of any field
        return damage_text(app_id, f"app.json is not a valid app ({type(error).__name__})")


def _divided(
    keys: Sequence[KeyT],
    ask: Callable[[Sequence[KeyT]], dict[KeyT, ValueT]],
    otherwise: Callable[[KeyT], ValueT] | None = None,
) -> dict[KeyT, ValueT]:
    """Return the answers of `ask`, split into parts if too large; use `otherwise` if a single one is too large."""
    try:
        return ask(keys)
    except AnswerTooLargeError:
        if len(keys) > 1:
            half = len(keys) // 2
            return _divided(keys[:half], ask, otherwise) | _divided(keys[half:], ask, otherwise)
        if otherwise is None:
            raise
        return {keys[0]: otherwise(keys[0])}


def _framed(data: bytes) -> Iterator[tuple[str, FilePart]]:
    """Parse `kind sent numbers... path`, followed by `sent` bytes; yield path and content of each file that exists."""
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        kind, *words, path = data[at:end].decode("utf-8", "replace").split(" ", 5)
        sent, size, inode, modified_ms = map(int, words)
        at = end + 1 + sent
        if at > len(data) or sent < 0:
            raise ValueError("it was cut off")
        if kind != "none":
            yield path, FilePart(kind == "file", data[end + 1 : at], size, inode, modified_ms)
