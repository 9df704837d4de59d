"""The jobs and records of apps, parsed from the output of the scripts, without I/O.

A program of the same user can write any text into names of files, targets of links and comments of jobs. Text that our
scripts did not write marks the app as damaged or is ignored; it never raises an error here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from airflow_provider_launch.util.untrusted import UntrustedError, parse_int

_LATEST = 100_000_000_000
"""Epoch seconds beyond which a date cannot be shown."""
_END = re.compile(r"(SUCCEEDED|FAILED|CANCELLED),\w{1,40},[0-9]{1,11}(\.[0-9]{1,9})?")
_ATTEMPT = re.compile(
    r"(?P<kind>start|exit),(?P<at>[0-9]{1,6},[0-9]{1,6},[0-9]{1,6},[0-9]{1,6}),"
    r"(?:(?P<host>[A-Za-z0-9._-]{1,255})|(?P<code>[0-9]{1,3}),(?P<stopped>[01])),"
    r"(?P<time>[0-9]{1,11}(?:\.[0-9]{1,9})?)"
)
FORGED_END = "end is not a link that its job has made"
_CLAIM = re.compile(r"\w{1,64}")
_JOB_FIELDS = 7
_COMMENT = re.compile(r"launch:(?P<app>\w+:\w+):(?P<nonce>\w+)(?: |$)")


@dataclass(frozen=True)
class Job:
    """One job as squeue shows it; for a heterogeneous job its leader."""

    id: str
    state: str
    reason: str
    start: int | None
    """Epoch seconds; for a waiting job the expected start."""
    end: int | None
    app: str
    """`<spec hash>:<instance>` of the app, as in its record."""
    nonce: str
    has_nodes: bool = False
    """Whether it has or had nodes, so that its start has at least begun."""


@dataclass
class Record:
    """The directory of one app, without the records of its attempts."""

    app_id: str
    created: str = ""
    """Inode and time of `id`, which differ for a later app with the same id; file systems reuse inodes."""
    claim: str = ""
    end: str = ""
    """`state,reason,time`."""
    cancelled: bool = False
    deleted: bool = False
    terminated: bool = False
    """Whether a signal ended its job, sent by the launcher, another user or Slurm."""
    alive: float = 0.0
    """Time of the last sign of life of its job."""
    submitted: float = 0.0
    changed: str = ""
    """Changes with each new record of an attempt."""
    damage: str = ""
    """The part that was not written by our scripts."""


@dataclass
class Observation:
    """All jobs and some records, as read at one time."""

    now: int = 0
    """Epoch seconds by the clock of the login node."""
    jobs: list[Job] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One attempt of one replica, from the names of its records."""

    app_attempt: int
    role: int
    replica: int
    number: int
    host: str = ""
    started: float | None = None
    code: int | None = None
    """Its exit code; None if it runs or was lost."""
    stopped: bool = False
    ended: float | None = None


@dataclass(frozen=True)
class Account:
    """The end of one job in the accounting of the cluster."""

    app_id: str
    state: str
    comment: str
    """Empty if the cluster does not store comments; then the app of the job is unknown."""

    def is_of(self, identity: str, nonce: str) -> bool:
        """Return whether it is a job of this app, and of this submission if there is a nonce."""
        known = _COMMENT.match(self.comment)
        return known is not None and known["app"] == identity and nonce in {"", known["nonce"]}


def parse_accounts(text: str) -> list[Account]:
    """Parse the output of `commands.ACCOUNTS`; a state may have more words, such as `CANCELLED by 0`."""
    rows = (line.split("|", 2) for line in text.split("\n") if line.count("|") > 1)
    return [Account(name, state.partition(" ")[0], comment) for name, state, comment in rows]


def parse_observation(text: str) -> Observation:
    """Parse the output of `commands.OBSERVE`."""
    found = Observation()
    head, _, files = text.partition("\nfiles\n")
    first, *lines = head.split("\n")
    found.now = _epoch(first.removeprefix("now ")) or 0
    for line in lines:
        raw, *fields = line.split("|", 7)
        # The comment of a foreign job may have several lines.
        if len(fields) == _JOB_FIELDS and raw.isascii() and raw.isdigit() and (known := _COMMENT.match(fields[-1])):
            _, state, reason, start, end, nodes, _ = fields
            times = _epoch(start), _epoch(end)
            found.jobs.append(Job(raw, state, reason, *times, known["app"], known["nonce"], bool(nodes)))
    for entry in filter(None, files.split("\0")):
        path, inode, changed, kind, target = entry.split("\t", 4)
        app_id, _, name = path.partition("/")
        record = found.records.setdefault(app_id, Record(app_id))
        _fill(record, name, f"{inode} {changed}", _time(changed), target if kind == "l" else "")
    # A directory without `id` is partly removed.
    found.records = {app_id: record for app_id, record in found.records.items() if record.created}
    return found


def parse_ends(text: str, app_ids: Collection[str]) -> dict[str, str | None]:
    """Parse the output of `commands.MARK_END`: app id to the end, None if our scripts have not written it.

    Apps without an end, and ids that are not in `app_ids`, are left out.
    """
    rows = (entry.partition("|") for entry in text.split("\0"))
    ends = {app_id: end for app_id, _, end in rows if end and app_id in app_ids}
    return {app_id: end if _END.fullmatch(end) else None for app_id, end in ends.items()}


_MARKS = {"cancel": "cancelled", "delete": "deleted", "term": "terminated"}


def _fill(record: Record, name: str, version: str, changed: float, target: str) -> None:
    if name == "id":
        record.created = version
        record.submitted = max(record.submitted, changed)
    elif name == "claim":
        record.claim = target
        if not _CLAIM.fullmatch(target):
            record.damage = "claim is not a link that its job has made"
    elif name == "end":
        record.end = target
        if not _END.fullmatch(target):
            record.end, record.damage = "", FORGED_END
    elif name in _MARKS:
        setattr(record, _MARKS[name], True)
    elif name == "alive":
        record.alive = changed
    elif name == "submitted":
        record.submitted = max(record.submitted, changed)
    else:
        record.changed = version


def parse_attempts(names: Iterable[str]) -> list[Attempt]:
    """Parse the attempts of all replicas, in order, from names of records: `start,...` and `exit,...`."""
    known: dict[tuple[int, ...], dict[str, object]] = {}
    for match in filter(None, map(_ATTEMPT.fullmatch, names)):
        attempt = known.setdefault(tuple(map(int, match["at"].split(","))), {})
        if match["kind"] == "start" and match["host"]:
            attempt.update(host=match["host"], started=float(match["time"]))
        elif match["kind"] == "exit" and match["code"]:
            attempt.update(code=int(match["code"]), stopped=match["stopped"] == "1", ended=float(match["time"]))
    return [Attempt(*at, **found) for at, found in sorted(known.items()) if found]  # type: ignore[arg-type] # as matched


def _epoch(text: str) -> int | None:
    try:
        return parse_int(text, high=_LATEST)
    except UntrustedError:
        return None


def _time(text: str) -> float:
    """Parse the time of a file, which its owner can set to any value."""
    time = float(text)
    return time if 0 <= time <= _LATEST else 0.0


def damage_text(app_id: str, why: str) -> str:
    """Return the error message for a damaged record."""
    return f"the record of app {app_id!r} is damaged: {why}; delete the app, or repair its directory below root"
