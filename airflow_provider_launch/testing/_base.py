"""Fixtures and helpers of the whole contract."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import pkgutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import pytest

from airflow_provider_launch.schedulers.api import (
    Capability,
    DescribeAppResponse,
    JsonValue,
    LogChunk,
    Scheduler,
    has_own,
)
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import InvalidAppError, UnknownAppException, UnsupportedError
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.testing._process import OtherProcess
from airflow_provider_launch.testing.engine import Engine

T = TypeVar("T")

SOAK = os.environ.get("LAUNCH_SOAK", "0") not in ("", "0")


def often(few: T, many: T) -> T:
    """Return how often a random test is repeated: `many` with `LAUNCH_SOAK=1`, else `few`."""
    return many if SOAK else few


MakeScheduler = Callable[[], Scheduler[Any]]
MakeProcess = Callable[[], OtherProcess]

NODE_CLOCK_S = 60.0
"""Maximum clock difference between this host and a node."""
_LATE_LINES_S = 5.0
"""Seconds after the end of an app within which its last lines can be read."""
_DELETERS = 8
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5


def until(
    condition: Callable[[], object],
    timeout_s: float,
    what: str,
    pause_s: float = _PAUSE_S,
    *,
    found: Callable[[], str] | None = None,
) -> None:
    """Wait until the condition is true; at the timeout fail with `what`, a sentence that states the condition.

    `found` returns a sentence about what is there instead.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() > started + timeout_s:
            instead = f"; {found()}" if found else ""
            raise AssertionError(f"timed out after {timeout_s:g} s waiting until {what}{instead}")
        _pause(started, pause_s)


def shown(found: DescribeAppResponse | None) -> str:
    """Return what `describe` gave, in the words of the interface."""
    if found is None:
        return "`describe` gives None"
    return f"`describe` gives {found.state.name} with is_stuck={found.is_stuck}, msg {found.msg!r}"


def difference(one: object, other: object, path: str = "request") -> str:
    """Return the first part in which two requests differ, by its path; empty if they are equal."""
    if one == other:
        return ""
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        pairs = [(f"{path}.{key}", value, vars(other)[key]) for key, value in vars(one).items()]
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        pairs = [(f"{path}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = [(f"{path}[{number}]", *pair) for number, pair in enumerate(zip(one, other, strict=True))]
    else:
        pairs = []
    found = (difference(first, second, where) for where, first, second in pairs)
    return next(filter(None, found), f"{path}: {one!r} is not {other!r}")


def without_unknown_errors(scheduler: Scheduler[Any]) -> Scheduler[Any]:
    """Return the scheduler, whose `describe` now gives None if it raised an error because there is no such app.

    One test reports that error; otherwise each test that waits for the end of a `delete` would.
    """
    one, many = scheduler.describe, scheduler.describe_many

    def describe(app_id: str) -> DescribeAppResponse | None:
        try:
            return one(app_id)
        except UnknownAppException:
            return None

    def describe_many(app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        ids = [*app_ids]
        try:
            return many(app_ids if isinstance(app_ids, Collection) else iter(ids))
        except UnknownAppException:
            # The base calls this for each.
            return {app_id: describe(app_id) for app_id in ids} if len(ids) > 1 else dict.fromkeys(ids)

    vars(scheduler).update(describe=describe, describe_many=describe_many)
    return scheduler


def _pause(started: float, at_least_s: float = _PAUSE_S, share: float = 0.1) -> None:
    """Sleep for a share of the time waited since `started`, so that polls do not slow the engine."""
    time.sleep(max(at_least_s, min(share * (time.monotonic() - started), _LONGEST_PAUSE_S)))


def within(items: Iterable[T], timeout_s: float, what: str) -> Iterator[T]:
    """Yield the items, and fail if they do not end in time, because a hanging run reports nothing."""
    deadline = time.monotonic() + timeout_s
    for item in items:
        assert time.monotonic() < deadline, f"{what} has not ended within {timeout_s:g} s"
        yield item


def read_on(read: Callable[[JsonValue], LogChunk], timeout_s: float, cursor: JsonValue = None) -> Iterator[LogChunk]:
    """Yield chunks from the cursor on until a read returns no lines.

    Each cursor passes through JSON, as between processes.
    """

    def chunks() -> Iterator[LogChunk]:
        stored = json.dumps(cursor)
        while (chunk := read(json.loads(stored))).lines:
            following = json.dumps(chunk.cursor)
            assert following != stored, f"the cursor did not move although lines were read: {stored}"
            yield chunk
            stored = following

    return within(chunks(), timeout_s, "the log")


class Apps:
    """Launches apps, waits for them, and removes them at the end of the test."""

    def __init__(
        self,
        make_scheduler: MakeScheduler,
        engine: Engine,
        *,
        image: str,
        resource: Resource,
        cfg: Mapping[str, Any],
        timeout_s: float,
        lag_s: float = 0.0,
        option_names: Mapping[str, str | None] | None = None,
    ) -> None:
        self.another = make_scheduler
        """Makes a separate scheduler, as another process has."""
        self.engine = engine
        self.image = image
        self.cfg = dict(cfg)
        self.timeout_s = timeout_s
        self.lag_s = lag_s
        self.option_names = option_names or {}
        self.scheduler = make_scheduler()
        self._resource = resource
        self._ids: list[str] = []

    # ---- launch ------------------------------------------------------------------------------------

    def role(self, name: str, entrypoint: str | None, *args: str, **fields: Any) -> Role:
        """Return a role that runs a program of the image. Macros are replaced in `args`: write `$$` for `$`."""
        values = {"resource": copy.deepcopy(self._resource), "image": self.image, **fields}
        return Role(name=name, entrypoint=entrypoint, args=[*args], **values)

    def sh(self, script: str, name: str = "main", **fields: Any) -> Role:
        """Return a role that runs a shell script; `$NAME` is left for the shell, `$$` becomes `$`."""
        return self.role(name, "sh", "-c", script, **fields)

    def keep(self, app_id: str) -> str:
        """Register and return the id; its app is removed at the end of the test."""
        if app_id not in self._ids:
            self._ids.append(app_id)
        return app_id

    def new_id(self) -> str:
        """Return a new app id; its app is removed at the end of the test."""
        return self.keep(make_unique("contract"))

    def dryrun(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> AppDryRunInfo[Any]:
        """Return the request of an app of these roles; `cfg` overrides the backend's cfg."""
        app = AppDef("contract", [*roles])
        return self.scheduler.submit_dryrun(app, {**self.cfg, **cfg}, app_id=app_id or self.new_id())

    def refusal(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> str:
        """Return the message with which the dry run refuses these roles; empty if accepted."""
        try:
            self.dryrun(*roles, app_id=app_id, **cfg)
        except InvalidAppError as error:
            return str(error)
        return ""

    # ---- follow --------------------------------------------------------------------------------------------

    def start(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> str:
        """Launch an app of these roles and return its id."""
        return self.keep(self.scheduler.schedule(self.dryrun(*roles, app_id=app_id, **cfg)))

    def end(self, app_id: str, scheduler: Scheduler[Any] | None = None) -> DescribeAppResponse:
        """Wait until the app has ended, and return its description."""
        started = time.monotonic()
        while True:
            found = (scheduler or self.scheduler).describe(app_id)
            assert found is not None, f"describe returned None for {app_id}; keep the record of an app until `delete`"
            if is_terminal(found.state):
                return found
            late = f"app {app_id} has not ended within {self.timeout_s:g} s: {found}"
            assert time.monotonic() < started + self.timeout_s, late
            _pause(started)

    def succeed(self, app_id: str) -> DescribeAppResponse:
        """Wait until the app has ended, as `end` does, and check that it has succeeded."""
        found = self.end(app_id)
        assert found.state is AppState.SUCCEEDED, f"{app_id} has ended, expected SUCCEEDED; {shown(found)}"
        return found

    def until_processes_end(self, app_id: str) -> DescribeAppResponse:
        """Wait until the app has ended, as `end` does, and check that none of its processes runs after that."""
        found = self.end(app_id)
        started = time.monotonic()
        while count := self.engine.alive(app_id):
            late = (
                f"{found.state.name} was reported while {_counted(count, 'process', 'processes')} of the app still "
                f"ran; report it only after all have ended, or raise `lag_s`"
            )
            assert time.monotonic() < started + self.lag_s, late
            time.sleep(_PAUSE_S)
        return found

    def run(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> DescribeAppResponse:
        """Launch an app and wait until it has ended."""
        return self.end(self.start(*roles, app_id=app_id, **cfg))

    def lines(
        self, app_id: str, role: str = "main", k: int = 0, *, scheduler: Scheduler[Any] | None = None, **how: Any
    ) -> list[str]:
        """Return the lines that one replica has written so far; `how` as for `log_iter`."""
        texts = (scheduler or self.scheduler).log_iter(app_id, role, k, **how)
        return [*within(texts, self.timeout_s, f"the log of {role}/{k} of {app_id}, whose cursor may not move,")]

    def until_written(self, app_id: str, text: str, role: str = "main", k: int = 0) -> None:
        """Wait until a replica has written a line with this text, which shows that its program runs."""
        ended_at = float("inf")

        def is_written() -> bool:
            nonlocal ended_at
            found = self.scheduler.describe(app_id)
            if found is None or any(text in line for line in self.lines(app_id, role, k)):
                return found is not None
            if is_terminal(found.state):
                ended_at = min(ended_at, time.monotonic())
                late = f"{app_id} has ended, and {role}/{k} has not written {text!r}; {shown(found)}"
                assert time.monotonic() < ended_at + _LATE_LINES_S + self.lag_s, late
            return False

        until(is_written, self.timeout_s, f"{role}/{k} of {app_id} writes {text!r}")

    def until_running(self, app_id: str, *wanted: tuple[str, int]) -> None:
        """Wait until app and replicas are RUNNING; an engine may report it after the program has started."""

        def runs() -> bool:
            found = self.scheduler.describe(app_id)
            if found is None or found.state is not AppState.RUNNING:
                ended = found is not None and is_terminal(found.state)
                assert not ended, f"{app_id} has ended before it was reported as RUNNING; {shown(found)}"
                return False
            by_key = replicas(found)
            return all(key in by_key and by_key[key].state is AppState.RUNNING for key in wanted)

        self._until(runs, app_id, "is RUNNING")

    def expect_starts(self, app_id: str, expected: int) -> None:
        """Check how many programs of the app the engine has started; return at once if it cannot report."""
        found = self.engine.starts(app_id)
        assert found in {None, expected}, (
            f"{_counted(found, 'program', 'programs')} of {app_id} started, expected {expected} (`Engine.starts`)"
        )

    def until_nothing_is_alive(self, app_id: str) -> None:
        """Wait until the engine reports that no process of the app runs; return at once if it cannot report."""
        until(
            lambda: not self.engine.alive(app_id),
            self.timeout_s,
            f"no process of {app_id} is alive",
            found=lambda: (
                f"{_counted(self.engine.alive(app_id), 'process still runs', 'processes still run')} (`Engine.alive`)"
            ),
        )

    def until_nothing_is_left(self, app_id: str) -> None:
        """Wait until the engine has no object of the app; return at once if it cannot report."""
        until(
            lambda: not self.engine.left(app_id),
            self.timeout_s,
            f"nothing of {app_id} is left in the engine",
            found=lambda: f"{_counted(self.engine.left(app_id), 'thing is', 'things are')} still there (`Engine.left`)",
        )

    def until_stuck(self, app_id: str) -> None:
        """Wait until the app is reported as unable to start."""

        def is_stuck() -> bool:
            found = self.scheduler.describe(app_id)
            assert found is not None, f"app {app_id} is gone"
            assert not is_terminal(found.state), f"{app_id} has ended, expected one that cannot start; {shown(found)}"
            return found.is_stuck

        self._until(is_stuck, app_id, "is reported as unable to start; expected PENDING with is_stuck=True and a msg")

    def _until(self, condition: Callable[[], object], app_id: str, what: str) -> None:
        until(condition, self.timeout_s, f"{app_id} {what}", found=lambda: shown(self.scheduler.describe(app_id)))

    def histories(self, app_id: str, observers: int = 4, after_s: float = 1.0) -> list[list[AppState]]:
        """Return the sequence of states that each of several schedulers observes.

        They poll in parallel until `after_s` seconds after the end.
        """

        def history(_: int) -> list[AppState]:
            scheduler = self.another()
            seen: list[AppState] = []
            started = time.monotonic()
            ended_at = float("inf")
            while time.monotonic() < min(started + self.timeout_s, ended_at + after_s):
                found = scheduler.describe(app_id)
                assert found is not None
                if seen[-1:] != [found.state]:
                    seen.append(found.state)
                if is_terminal(found.state):
                    ended_at = min(ended_at, time.monotonic())
                # Poll often, so that observers meet during retries.
                _pause(started, share=0.01)
            return seen

        with ThreadPoolExecutor(observers) as pool:
            return [*pool.map(history, range(observers))]

    def traces(self, app_id: str) -> list[str]:
        """Return in which places of scheduler and engine the app still shows; empty for an unknown app."""
        found = self.scheduler.describe(app_id)
        others = {
            f"describe reports {found.state.name}" if found else "": found is not None,
            "list has it": app_id in {row.app_id for row in self.scheduler.list()},
            "something of it is alive": self.engine.alive(app_id),
            "something of it was started": self.engine.starts(app_id),
        }
        return [what for what, is_so in others.items() if is_so]

    def has_option(self, name: str) -> bool:
        """Return whether the scheduler has an option of this name."""
        return self.scheduler.run_opts().get(name) is not None

    def options(self, **values: Any) -> dict[str, Any]:
        """Return these options under the names that the scheduler has for them, without those that it lacks."""
        names = {name: self.option_names.get(name, name) for name in values}
        return {own: values[name] for name, own in names.items() if own is not None and self.has_option(own)}

    def remove(self) -> None:
        """Delete every app of this test, and check that none still runs."""
        scheduler = self.another()

        def delete(app_id: str) -> None:
            # Reported by the test of `delete` of an unknown app, and not as an error of each test.
            with contextlib.suppress(UnknownAppException):
                scheduler.delete(app_id)

        # Some engines need seconds for each.
        with ThreadPoolExecutor(_DELETERS) as pool:
            deletions = [pool.submit(delete, app_id) for app_id in self._ids]
        for deletion in deletions:
            deletion.result()
        # A backend that does not override `_delete_existing` keeps the record. The tests of `delete` report that, so it
        # is not an error here.
        removes = has_own(scheduler, "_delete_existing")
        for app_id in self._ids:

            def is_gone(app_id: str = app_id) -> bool:
                found = scheduler.describe(app_id)
                return found is None or (not removes and is_terminal(found.state))

            what = f"{app_id} is gone; `delete` ends an app and removes its record, see `_delete_existing`"
            until(is_gone, self.timeout_s, what)
            self.until_nothing_is_alive(app_id)


def _counted(count: int | None, one: str, many: str) -> str:
    return f"{count or 0} {one if count == 1 else many}"


class _Replicas(dict[tuple[str, int], ReplicaStatus]):
    def __missing__(self, key: tuple[str, int]) -> ReplicaStatus:
        role, k = key
        raise AssertionError(
            f"`describe` must return a status for each replica; `roles_statuses` lacks replica {k} of role {role!r}, "
            f"and has {[*self]}"
        )


def replicas(found: DescribeAppResponse) -> dict[tuple[str, int], ReplicaStatus]:
    """Return the replicas of an app by role and number."""
    return _Replicas({(role.role, replica.id): replica for role in found.roles_statuses for replica in role.replicas})


class ContractBase:
    """Base class with which a backend describes itself, by class attributes and fixtures.

    A subclass sets `factory`, `capabilities` and the fixtures `params` and `image`; the rest has defaults.
    """

    factory: ClassVar[str] = ""
    """`package.module:create_scheduler`, called with a session name and `params`."""
    capabilities: ClassVar[frozenset[Capability]]
    """Capabilities of the scheduler; a test compares them with those that the scheduler declares."""
    timeout_s: ClassVar[float] = 60.0
    """Seconds that each wait may take: a short app must end, and any log must be readable, within this time."""
    lag_s: ClassVar[float] = 0.0
    """Maximum seconds until the engine reports the end of a program that has ended, and until `Engine.alive` counts no
    program of an app whose end was reported."""
    drain_s: ClassVar[float] = 0.0
    """Seconds for which a program stays alive after much output, on an engine that loses unread output when the program
    ends."""
    endless: ClassVar[int] = 20_000_000
    """Bytes of a line without an end; lower it if the engine cuts lines, or its emulation takes minutes."""
    many: ClassVar[int] = 200
    """Number of apps in the tests that count requests."""
    apps_at_once: ClassVar[int] = 10
    """Number of apps that the engine runs at the same time. Tests that need more are skipped with this reason."""
    option_names: ClassVar[Mapping[str, str | None]] = {}
    """Name of your option for `time_limit_s` (seconds until an app is ended as FAILED) and `grace_s` (seconds between
    TERM and KILL), if it is another; None if there is no such option. Otherwise a missing option is a failure.

    `copy_env` and `workspace_max_mb` can be named too; their tests are skipped if there is no such option."""
    xfail: ClassVar[Mapping[str, str]] = {}
    """Known failures: test name, or `test_x[a]` for one set of parameters, to the reason. As with pytest's strict
    xfail, a test that passes is an error."""

    @pytest.fixture
    def params(self) -> dict[str, Any]:
        """Return arguments of the factory as plain JSON, so that another process can make the same scheduler."""
        return {}

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any] | None:
        """Return arguments of the factory for an engine that does not answer; None if that is not possible."""
        return None

    @pytest.fixture
    def image(self) -> str:
        """Return an image or directory that has `sh` and the programs listed in `docs/testing.md`."""
        return ""

    @pytest.fixture
    def program_with_a_space(self) -> str | None:
        r"""Return the path in the image of a program with a space in its name; None if there is none.

        It prints each argument as a line `<arg>`: an executable file with `#!/bin/sh` and `printf '<%s>\n' "$@"`.
        """
        return None

    @pytest.fixture
    def resource(self) -> Resource:
        """Return the resource of every launched role; small, because 50 replicas run in parallel."""
        return Resource(cpu=1, gpu=0, memMB=128)

    @pytest.fixture
    def cfg(self) -> dict[str, Any]:
        """Return the options of every launch."""
        return {}

    @pytest.fixture
    def workspace_cfg(self, cfg: dict[str, Any]) -> dict[str, Any]:
        """Return the options of every launch with a workspace."""
        return cfg

    @pytest.fixture
    def never_starts(self) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """Return role fields and options of a launch that is accepted but never starts.

        None: the engine refuses such launches.
        """
        return None

    @pytest.fixture
    def engine(self) -> Engine:
        """Return direct access to the engine."""
        return Engine()

    @pytest.fixture
    def make_scheduler(self, params: dict[str, Any]) -> Iterator[MakeScheduler]:
        """Return a function that makes separate schedulers; all are closed at the end."""
        made: list[Scheduler[Any]] = []

        def make() -> Scheduler[Any]:
            made.append(without_unknown_errors(self.create(**params)))
            return made[-1]

        yield make
        for scheduler in made:
            scheduler.close()

    @pytest.fixture
    def apps(
        self, make_scheduler: MakeScheduler, engine: Engine, image: str, resource: Resource, cfg: dict[str, Any]
    ) -> Iterator[Apps]:
        """Return the launcher of apps."""
        apps = Apps(
            make_scheduler,
            engine,
            image=image,
            resource=resource,
            cfg=cfg,
            timeout_s=self.timeout_s,
            lag_s=self.lag_s,
            option_names=self.option_names,
        )
        yield apps
        apps.remove()

    @pytest.fixture
    def make_process(self, params: dict[str, Any]) -> Iterator[MakeProcess]:
        """Return a function that starts a process with a scheduler of the same params."""
        if not self.factory:
            pytest.skip("the backend has no `factory`, so another process cannot make its scheduler")
        with contextlib.ExitStack() as stack:
            yield lambda: stack.enter_context(OtherProcess(self.factory, params))

    @pytest.fixture
    def other_process(self, make_process: MakeProcess) -> OtherProcess:
        """Return a scheduler of the same params in another process."""
        return make_process()

    @pytest.fixture(autouse=True)
    def _expect_failure(self, request: pytest.FixtureRequest) -> None:
        names = {request.node.name, getattr(request.node, "originalname", request.node.name)}
        for name in names & set(self.xfail):
            request.node.add_marker(pytest.mark.xfail(reason=self.xfail[name], strict=True))

    # ---- for tests -------------------------------------------------------------------------------------------

    def create(self, **params: Any) -> Scheduler[Any]:
        """Return the scheduler that the factory makes with these arguments."""
        scheduler: Scheduler[Any] = pkgutil.resolve_name(self.factory)("contract", **params)
        return scheduler

    def needs_option(self, apps: Apps, name: str, *, is_optional: bool = False) -> None:
        """Skip the test if the backend declares that it has no option for this.

        `name` is that of other schedulers; with `is_optional` only some schedulers have the option.
        """
        own = self.option_names.get(name, name)
        if own is None:
            pytest.skip(f"`option_names` declares that there is no option {name!r}")
        if apps.has_option(own):
            return
        if is_optional and own == name:
            pytest.skip(f"there is no option {name!r}, which only some schedulers have")
        pytest.fail(
            f"the scheduler has no option {own!r}, which users know from the other schedulers; add it, or name "
            f"yours in `option_names` of this class, or put None there: {{{name!r}: None}}",
            pytrace=False,
        )

    def needs_apps_at_once(self, count: int) -> None:
        """Skip the test if the engine does not run this many apps at the same time."""
        if count > self.apps_at_once:
            pytest.skip(f"the test needs {count} running apps, `apps_at_once` is {self.apps_at_once}")

    def needs(self, capability: Capability) -> None:
        """Skip the test if the scheduler does not have the capability; another test checks the refusal."""
        if capability not in self.capabilities:
            pytest.skip(f"the scheduler does not declare {capability}")

    @staticmethod
    @contextlib.contextmanager
    def refused(*words: str, error: type[Exception] | None = None) -> Iterator[None]:
        """Expect a refusal that contains all of these words, and a fix after a semicolon."""
        with pytest.raises(error or UnsupportedError) as caught:
            yield
        missing = [word for word in words if word.lower() not in str(caught.value).lower()]
        assert not missing, f"{caught.value} does not name {missing}"
        _, _, cure = str(caught.value).partition(";")
        assert len(cure.split()) > 1, f"{caught.value} has no fix, such as '...; leave it out'"
