"""Models of containers and apps, built from responses of the engine, without I/O."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from airflow_provider_launch.schedulers._kit.endings import ReplicaEnd
from airflow_provider_launch.schedulers._kit.request import refuse_long_names
from airflow_provider_launch.schedulers.docker.naming import Kind, Label
from airflow_provider_launch.schedulers.retry import RolePolicy
from airflow_provider_launch.specs.errors import AppUnavailableError
from airflow_provider_launch.specs.roles import MAX_REPLICAS
from airflow_provider_launch.util.untrusted import UntrustedError, parse_int, parse_json

_EXIT_CODE = re.compile(r"Exited \((\d{1,10})\)")
_LATELY = re.compile(r"Exited \(\d+\) (?:Less than|\d+ second|About a minute|\d+ minute)")
_CANCELLED_START = re.compile(r"context cancell?ed\s*$", re.IGNORECASE)
_TAKEN, _DISCARDED = ".by-", ".void-"
_NO_NUMBERS = (0, 0, 0)
_MAX_NUMBER = 10**9
_MAX_PLAN = 1024 * 1024
_NO_MARKS: Mapping[str, Container] = MappingProxyType({})
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True)
class Container:
    """One row of the list of containers."""

    id: str
    name: str
    made: str
    """Name with which it was created; a suffix added later shows that it was adopted or discarded."""
    state: str
    """created, running, paused, restarting, removing, exited, dead."""
    exit_code: int | None
    """Set once the container has exited."""
    created: int
    """Epoch seconds by the engine's clock."""
    image_id: str
    created_by_us: bool
    """Whether the launcher created it; a container of an image made from one of its containers has the same labels."""
    kind: str
    app_id: str
    plan: str
    """Text on all containers of an app except its marks, see `Plan`."""
    role: str
    replica: int
    app_attempt: int
    """The attempt of the app, from 0."""
    attempt: int
    """The attempt of the replica within that of the app, from 0."""
    has_ended_lately: bool
    """Whether it ended only minutes before it was first listed, so that the engine still has the events of its end."""
    unhealthy: bool
    """Whether its health check fails."""
    renamed: bool
    """Whether another user renamed it."""
    restarts: int
    """Number of outside restarts that polls have seen."""
    damage: str
    """Error in the labels of a replica; empty if there is none."""
    notes: Mapping[str, str]
    """Labels that few containers have: of marks, of leases, the name of the app."""

    @property
    def discarded(self) -> bool:
        """Whether it was renamed so that no process starts it."""
        return (self.unstarted or self.removing) and _DISCARDED in self._added

    @property
    def taken(self) -> bool:
        """Whether another process renamed it, to start it instead of its creator."""
        return _TAKEN in self._added

    @property
    def _added(self) -> str:
        # Only the suffix, because names of apps and roles may contain the same text.
        return "" if self.renamed else self.name[len(self.made) :]

    @property
    def live(self) -> bool:
        """Whether it has processes."""
        return self.state in {"running", "paused", "restarting"}

    @property
    def removing(self) -> bool:
        """Whether its removal has started and is not complete; it has ended, or was never started."""
        return self.state == "removing"

    @property
    def unstarted(self) -> bool:
        """Whether it was created but not started."""
        return self.state == "created"


@dataclass(frozen=True)
class Detail:
    """Details from the inspection of one container. Times are epoch nanoseconds by the engine's clock, 0: never."""

    created: int
    started: int
    finished: int
    exit_code: int
    error: str
    """Why the engine could not start it; see `start_error`."""
    out_of_memory: bool
    outside: str = ""
    """The cause of an outside stop although the exit code is 0; empty if there was no such stop."""
    restarts: int = 0
    """Number of outside restarts."""
    removing: bool = False
    """It was inspected while it was being removed."""
    note: str = ""
    """Further details of its end."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Detail:
        """Return the detail from the response of an inspection."""
        with readable("the inspection of a container"):
            state = document["State"]
            return cls(
                created=epoch_ns(document["Created"]),
                started=epoch_ns(state["StartedAt"]),
                finished=epoch_ns(state["FinishedAt"]),
                exit_code=int(state["ExitCode"]),
                error=start_error(state),
                out_of_memory=bool(state.get("OOMKilled")),
                removing=state.get("Status") == "removing",
            )


def start_error(state: Mapping[str, Any]) -> str:
    """Return why the engine could not start a container, by its inspected state; empty if it may be started.

    Engines since 26.1 cancel a start whose client goes away. Such a container never ran, and its next start works.
    """
    text = str(state.get("Error") or "")
    return "" if state.get("Status") == "created" and _CANCELLED_START.search(text) else text


def exit_code_of(container: Container, detail: Detail | None) -> int | None:
    """Return the exit code of a container that has ended; None if it has not ended, or the code is unknown."""
    # The list shows no exit code while a container is being removed.
    return detail.exit_code if container.removing and detail and detail.finished else container.exit_code


def end_of(container: Container, detail: Detail | None) -> ReplicaEnd:
    """Return the end of a container, as far as the engine reports it."""
    code = exit_code_of(container, detail)
    if detail is None:
        return ReplicaEnd(code)
    start_error = detail.error if container.unstarted else ""
    return ReplicaEnd(
        code,
        # Exit code 0 is a success, even if another process of the container was killed.
        out_of_memory=detail.out_of_memory and bool(code),
        start_error=start_error,
        outside=detail.outside,
        note=detail.note,
    )


@dataclass(frozen=True)
class Plan:
    """Roles and limits of an app, from the labels of its containers."""

    replicas: Mapping[str, int]
    """Role to number of replicas, in order."""
    policies: Mapping[str, RolePolicy]
    time_limit_s: float | None
    own_network: bool = False
    """Whether the app has its own network."""
    accepts_stop: bool = False
    """Whether a program that exits with 0 after an outside stop has succeeded."""

    @classmethod
    def of(cls, app: App) -> Plan:
        """Return the plan of the app from one of its containers."""
        if app.damage:
            raise _damaged(app.damage)
        with readable(f"label {Label.PLAN} of container {app.plan_source.name!r}"):
            return _plan(app.plan_source.plan)


@lru_cache(maxsize=1024)
def _plan(text: str) -> Plan:
    # Cached, because a thousand apps are polled each second and most have equal plans.
    document = parse_json(text, _MAX_PLAN)
    roles = [(str(name), int(count), str(policy), int(retries)) for name, count, policy, retries in document["roles"]]
    counts = [count for _, count, _, _ in roles]
    # Each replica costs memory and time, even if it does not exist.
    if not 0 < sum(counts) <= MAX_REPLICAS or min(counts) < 1:
        raise UntrustedError(f"it has {sum(counts)} replicas")
    refuse_long_names(name for name, _, _, _ in roles)
    limit_s = document["time_limit_s"]
    services = document.get("services", [])
    if not isinstance(services, list):
        raise UntrustedError("its services are not a list")
    return Plan(
        replicas={name: count for name, count, _, _ in roles},
        policies={name: RolePolicy(policy, retries, name in services) for name, _, policy, retries in roles},
        time_limit_s=None if limit_s is None else float(limit_s),
        own_network=bool(document.get("own_network", False)),
        accepts_stop=bool(document.get("accepts_stop", False)),
    )


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Translate errors about unexpected values into a DamagedError, which names `what`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(f"{what} cannot be read ({type(error).__name__}: {error})") from error


class DamagedError(AppUnavailableError):
    """The containers of an app, or the engine's report about them, have unexpected values."""


def _damaged(damage: str) -> DamagedError:
    return DamagedError(f"{damage[:500]}; it is damaged, or comes from an image with such labels: delete the app")


@dataclass(slots=True)
class App:
    """All containers of one app, from one list."""

    app_id: str
    record: Container | None = None
    marks: Mapping[str, Container] = field(default_factory=lambda: _NO_MARKS)
    attempts: dict[tuple[str, int], list[Container]] = field(default_factory=dict)
    """(role, replica) to its containers, by attempt; discarded ones are left out."""
    discarded: frozenset[tuple[str, int, int]] = frozenset()
    """(role, replica, app attempt) of discarded containers."""
    all: list[Container] = field(default_factory=list)
    """All containers, as the engine listed them."""
    damage: str = ""
    """Error in the labels of a replica; empty if there is none."""
    started: int = -1
    """The latest attempt of the app in which a replica was seen running or ended, in this or an earlier list."""

    @property
    def plan_source(self) -> Container:
        """The record; if it was removed, the oldest container of a replica."""
        return self.record or min(self.replicas(), key=lambda c: c.created)

    def replicas(self) -> list[Container]:
        """Return all containers of replicas except discarded ones."""
        return [container for attempts in self.attempts.values() for container in attempts]

    def with_running(self, ids: Collection[str]) -> App:
        """Return the app as if these ended containers of replicas were still running."""
        if not ids:
            return self
        attempts = {
            key: [replace(c, state="running", exit_code=None) if c.id in ids else c for c in containers]
            for key, containers in self.attempts.items()
        }
        return replace(self, attempts=attempts)

    def app_attempt(self) -> int:
        """Return the latest attempt of the app that has a container."""
        return max((container.app_attempt for container in self.replicas()), default=0)


def apps_in(containers: Iterable[Container], cached: Callable[[str], App | None] = lambda _: None) -> dict[str, App]:
    """Return the apps among the containers of a list; unchanged ones are those that `cached` returns."""
    lists: dict[str, list[Container]] = {}
    for container in containers:
        if container.created_by_us:
            lists.setdefault(container.app_id, []).append(container)
    apps = {}
    for app_id, listed in lists.items():
        before = cached(app_id)
        apps[app_id] = before if before is not None and before.all == listed else _app(app_id, listed, before)
    return apps


def _app(app_id: str, listed: list[Container], before: App | None) -> App:
    app = App(app_id, all=listed, damage=next((container.damage for container in listed if container.damage), ""))
    for container in listed:
        if container.kind == Kind.APP:
            app.record = container
        elif container.kind == Kind.MARK:
            app.marks = {**app.marks, container.notes.get(Label.MARK, ""): container}
        elif container.kind == Kind.REPLICA and container.discarded:
            # A container that is being removed may have been started before, so it counts as removed.
            if container.unstarted:
                app.discarded |= {(container.role, container.replica, container.app_attempt)}
        elif container.kind == Kind.REPLICA:
            app.attempts.setdefault((container.role, container.replica), []).append(container)
    for key, attempts in app.attempts.items():
        # If a race created two containers for one attempt, keep the started one, else the adopted, else the older.
        attempts.sort(key=lambda c: (c.app_attempt, c.attempt, c.unstarted, c.removing, not c.taken, c.created))
        app.attempts[key] = [c for n, c in enumerate(attempts) if not n or not _same_attempt(attempts[n - 1], c)]
    # After its containers were removed, the app would look like one that is being submitted.
    seen = before.started if before is not None and _record_id(before) == _record_id(app) else -1
    app.started = max([seen, *(c.app_attempt for c in app.replicas() if c.live or c.exit_code is not None)])
    return app


def _record_id(app: App) -> str:
    return app.record.id if app.record else ""


def _same_attempt(one: Container, other: Container) -> bool:
    return (one.app_attempt, one.attempt) == (other.app_attempt, other.attempt)


def container_in(
    row: Mapping[str, Any],
    cached: Mapping[str, Container],
    is_copy: Callable[[str], bool] = lambda _: True,
    restarts: int = 0,
) -> Container:
    """Return the container of a row of the engine's list; the one in `cached` if nothing has changed.

    `is_copy` returns whether the image with this id was made from a container of the launcher; `restarts` is the number
    of outside restarts that polls have seen.
    """
    name = (row.get("Names") or [row["Id"]])[0].lstrip("/")
    status = row.get("Status") or ""
    code = _EXIT_CODE.match(status)
    unhealthy = "(unhealthy)" in status
    exit_code = int(code.group(1)) if code else None
    state = row["State"]
    before = cached.get(row["Id"])
    same = before and (before.name, before.state, before.exit_code, before.unhealthy, before.restarts)
    if before is not None and same == (name, state, exit_code, unhealthy, restarts):
        return before  # other fields of a container never change
    labels: Mapping[str, str] = row.get("Labels") or {}
    made = labels.get(Label.NAME, "")
    if name == made:
        made = name  # shares the memory of one string
    app_id = labels.get(Label.APP_ID, "")
    has_our_name = bool(made) and (name == made or name.startswith((made + _TAKEN, made + _DISCARDED)))
    renamed = bool(made) and not has_our_name and not is_copy(row["ImageID"])
    kind = sys.intern(labels.get(Label.KIND, ""))
    numbers, damage = _numbers(name, labels) if kind == Kind.REPLICA else (_NO_NUMBERS, "")
    # Texts that many containers share are interned, to save memory while a thousand apps are followed. Texts of one
    # app are not, because some versions of Python never free an interned string.
    return Container(
        id=row["Id"],
        name=name,
        made=made,
        state=sys.intern(state),
        exit_code=exit_code,
        created=row["Created"],
        image_id=sys.intern(row["ImageID"]),
        created_by_us=has_our_name or renamed,
        kind=kind,
        app_id=name if name == app_id else app_id,
        plan=sys.intern(labels.get(Label.PLAN, "")),
        role=sys.intern(labels.get(Label.ROLE, "")),
        replica=numbers[0],
        app_attempt=numbers[1],
        attempt=numbers[2],
        has_ended_lately=_LATELY.match(status) is not None,
        unhealthy=unhealthy,
        renamed=renamed,
        restarts=restarts,
        damage=damage,
        notes=_notes(tuple((key, labels[key]) for key in Label.NOTES if labels.get(key))),
    )


@lru_cache(maxsize=1024)
def _notes(labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return MappingProxyType(dict(labels))


def _numbers(name: str, labels: Mapping[str, str]) -> tuple[tuple[int, int, int], str]:
    """Return replica, attempt of the app and attempt of the replica, and the error in their labels."""
    try:
        replica, app_attempt, attempt = (
            parse_int(labels.get(label) or "0", 0, _MAX_NUMBER)
            for label in (Label.REPLICA, Label.APP_ATTEMPT, Label.ATTEMPT)
        )
    except UntrustedError as error:
        return _NO_NUMBERS, f"the labels of container {name!r} cannot be read ({error})"
    return (replica, app_attempt, attempt), ""


def taken_name(container: Container, nonce: str) -> str:
    """Return a name with which the creator of the container does not start it."""
    return f"{container.made}{_TAKEN}{nonce}"


def discarded_name(container: Container, nonce: str) -> str:
    """Return a name with which no process starts the container."""
    return f"{container.name}{_DISCARDED}{nonce}"


def epoch_ns(text: str) -> int:
    """Return the nanoseconds since 1970 of an RFC 3339 time with up to nine digits; 0 for the engine's "never"."""
    if text.startswith("0001"):
        return 0
    base, _, rest = text.partition(".")
    if not rest:
        return _seconds(text) * 1_000_000_000
    digits = re.match(r"\d+", rest)
    fraction = digits.group(0) if digits else ""
    return _seconds(base + rest[len(fraction) :]) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])


def _seconds(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    # Docker writes UTC.
    return int(((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)) - _EPOCH).total_seconds())
