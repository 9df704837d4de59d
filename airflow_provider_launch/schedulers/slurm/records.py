"""What is known of apps: their jobs in Slurm, and the records beside them. Parsed from what the scripts write; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = [
    "Account",
    "Attempt",
    "Job",
    "Observation",
    "Record",
    "parse_accounts",
    "parse_attempts",
    "parse_observation",
]

_COMMENT = re.compile(r"launch:(?P<app>\w+:\w+):(?P<nonce>\w+)(?: |$)")


@dataclass(frozen=True)
class Job:
    """One job as squeue shows it; of a heterogeneous job its leader."""

    id: str
    state: str
    reason: str
    start: int | None
    """Epoch seconds; of a waiting job when it is expected to start."""
    end: int | None
    app: str
    """`<spec hash>:<instance>` of the app, which its record has too."""
    nonce: str
    has_nodes: bool = False
    """Whether it has, or had, nodes: Slurm has begun to start it."""


@dataclass
class Record:
    """The directory of one app, without the records of its attempts."""

    app_id: str
    created: str = ""
    """Inode and time of `id`: a later app with the same id differs. File systems use an inode at once again."""
    claim: str = ""
    end: str = ""
    """`state,word,time`."""
    cancelled: bool = False
    deleted: bool = False
    terminated: bool = False
    """Whether its job was ended by a signal: by us, by somebody else or by Slurm."""
    alive: float = 0.0
    """When its job showed last that it lives."""
    submitted: float = 0.0
    changed: str = ""
    """Differs when there are more records of attempts."""


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
    """Its exit code; None: it runs, or was lost."""
    stopped: bool = False
    ended: float | None = None


@dataclass(frozen=True)
class Account:
    """How one job ended, by the accounts of the cluster."""

    app_id: str
    state: str
    comment: str
    """Empty where the cluster keeps none: then nothing shows whose job it was."""

    def is_of(self, identity: str, nonce: str) -> bool:
        """Return whether it is a job of this app; of this submission, if there is a nonce."""
        known = _COMMENT.match(self.comment)
        return known is not None and known["app"] == identity and nonce in {"", known["nonce"]}


def parse_accounts(text: str) -> list[Account]:
    """Return what `commands.ACCOUNTS` wrote; a state may have more words, as `CANCELLED by 0`."""
    rows = (line.split("|", 2) for line in text.split("\n") if line.count("|") > 1)
    return [Account(name, state.partition(" ")[0], comment) for name, state, comment in rows]


def parse_observation(text: str) -> Observation:
    """Return what `commands.OBSERVE` wrote."""
    found = Observation()
    head, _, files = text.partition("\nfiles\n")
    for line in head.split("\n"):
        if line.startswith("now "):
            found.now = int(line[4:])
        elif "|launch:" in line:
            raw, _, state, reason, start, end, nodes, comment = line.split("|", 7)
            if known := _COMMENT.match(comment):
                times = _epoch(start), _epoch(end)
                found.jobs.append(Job(raw, state, reason, *times, known["app"], known["nonce"], bool(nodes)))
    for line in files.split("\n"):
        if line:
            path, inode, changed, target = line.split("\t")
            app_id, _, name = path.partition("/")
            record = found.records.setdefault(app_id, Record(app_id))
            _fill(record, name, f"{inode} {changed}", changed, target)
    # Without `id` it is half removed.
    found.records = {app_id: record for app_id, record in found.records.items() if record.created}
    return found


def _fill(record: Record, name: str, version: str, changed: str, target: str) -> None:
    if name == "id":
        record.created = version
        record.submitted = max(record.submitted, float(changed))
    elif name == "claim":
        record.claim = target
    elif name == "end":
        record.end = target
    elif name == "cancel":
        record.cancelled = True
    elif name == "delete":
        record.deleted = True
    elif name == "term":
        record.terminated = True
    elif name == "alive":
        record.alive = float(changed)
    elif name == "submitted":
        record.submitted = max(record.submitted, float(changed))
    elif name == "status":
        record.changed = version


def parse_attempts(names: Iterable[str]) -> list[Attempt]:
    """Return the attempts of all replicas in order, from names of records: `start,...` and `exit,...`."""
    known: dict[tuple[int, int, int, int], dict[str, object]] = {}
    for name in names:
        kind, *fields = name.split(",")
        if kind == "start":
            host, started = fields[4:]
            known.setdefault(_place(fields), {}).update(host=host, started=float(started))
        elif kind == "exit":
            code, stopped, ended = fields[4:]
            known.setdefault(_place(fields), {}).update(code=int(code), stopped=stopped == "1", ended=float(ended))
    return [Attempt(*at, **known[at]) for at in sorted(known)]  # type: ignore[arg-type] # named above


def _place(fields: list[str]) -> tuple[int, int, int, int]:
    app_attempt, role, replica, number = map(int, fields[:4])
    return app_attempt, role, replica, number


def _epoch(text: str) -> int | None:
    return int(text) if text.isdigit() else None
