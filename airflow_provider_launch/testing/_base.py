"""Fixtures and helpers of all parts of the contract."""

from __future__ import annotations

import contextlib
import copy
import json
import pkgutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.testing._process import OtherProcess
from airflow_provider_launch.testing.engine import Engine

MakeScheduler = Callable[[], Scheduler[Any]]
MakeProcess = Callable[[], OtherProcess]

NODE_CLOCK_S = 60.0
"""How far the clock of a node, which is not ours, may be off."""
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5

_T = TypeVar("_T")


def until(condition: Callable[[], object], timeout_s: float, what: str, pause_s: float = _PAUSE_S) -> None:
    """Wait until the condition is true, or fail and name what was waited for."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + timeout_s, f"waited {timeout_s:g} s in vain: {what}"
        _pause(begun, pause_s)


def _pause(begun: float, at_least_s: float = _PAUSE_S, share: float = 0.1) -> None:
    """Sleep before the next check, for a share of the time since `begun`: who asks all the time slows the engine."""
    time.sleep(max(at_least_s, min(share * (time.monotonic() - begun), _LONGEST_PAUSE_S)))


def within(items: Iterable[_T], timeout_s: float, what: str) -> Iterator[_T]:
    """Yield the items, and fail if there is no end of them in time: a run that hangs reports nothing."""
    deadline = time.monotonic() + timeout_s
    for item in items:
        assert time.monotonic() < deadline, f"{what} has not ended within {timeout_s:g} s"
        yield item


def read_on(read: Callable[[JsonValue], LogChunk], timeout_s: float, cursor: JsonValue = None) -> Iterator[LogChunk]:
    """Read from the cursor on until nothing comes. Each cursor goes through JSON, as between processes."""

    def chunks() -> Iterator[LogChunk]:
        known = json.dumps(cursor)
        while (chunk := read(json.loads(known))).lines:
            following = json.dumps(chunk.cursor)
            assert following != known, f"the cursor did not move although lines came: {known}"
            yield chunk
            known = following

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
    ) -> None:
        self.another = make_scheduler
        """Makes a scheduler as another process would."""
        self.engine = engine
        self.image = image
        self.cfg = dict(cfg)
        self.timeout_s = timeout_s
        self.lag_s = lag_s
        self.scheduler = make_scheduler()
        self._resource = resource
        self._ids: list[str] = []

    # ---- what is launched ------------------------------------------------------------------------------------

    def role(self, name: str, entrypoint: str, *args: str, **fields: Any) -> Role:
        """Return a role that runs a program of the image. Macros are replaced in `args`: a `$` of its own is `$$`."""
        values = {"resource": copy.deepcopy(self._resource), "image": self.image, **fields}
        return Role(name=name, entrypoint=entrypoint, args=[*args], **values)

    def sh(self, script: str, name: str = "main", **fields: Any) -> Role:
        """Return a role that runs a shell script; `$NAME` is left for the shell, `$$` becomes `$`."""
        return self.role(name, "sh", "-c", script, **fields)

    def keep(self, app_id: str) -> str:
        """Return the id; its app is removed at the end of the test."""
        if app_id not in self._ids:
            self._ids.append(app_id)
        return app_id

    def new_id(self) -> str:
        """Return a new app id; its app is removed at the end of the test."""
        return self.keep(make_unique("contract"))

    def dryrun(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> AppDryRunInfo[Any]:
        """Return the request of an app of these roles; `cfg` comes on top of the backend's own."""
        app = AppDef("contract", [*roles])
        return self.scheduler.submit_dryrun(app, {**self.cfg, **cfg}, app_id=app_id or self.new_id())

    def refusal(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> str:
        """Return the words with which the dry run refuses an app of these roles; empty if it does not."""
        try:
            self.dryrun(*roles, app_id=app_id, **cfg)
        except InvalidAppError as error:
            return str(error)
        return ""

    # ---- its life --------------------------------------------------------------------------------------------

    def start(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> str:
        """Launch an app of these roles and return its id."""
        return self.keep(self.scheduler.schedule(self.dryrun(*roles, app_id=app_id, **cfg)))

    def end(self, app_id: str, scheduler: Scheduler[Any] | None = None) -> DescribeAppResponse:
        """Wait until the app has ended, and return all that is known of it."""
        begun = time.monotonic()
        while True:
            found = (scheduler or self.scheduler).describe(app_id)
            assert found is not None, f"app {app_id} is gone"
            if is_terminal(found.state):
                return found
            late = f"app {app_id} has not ended within {self.timeout_s:g} s: {found}"
            assert time.monotonic() < begun + self.timeout_s, late
            _pause(begun)

    def until_over(self, app_id: str) -> DescribeAppResponse:
        """Wait until the app has ended, as `end` does; from that answer on, nothing of it may run."""
        found = self.end(app_id)
        begun = time.monotonic()
        while count := self.engine.alive(app_id):
            late = f"{found.state.name} was reported while {count} processes of the app still ran"
            assert time.monotonic() < begun + self.lag_s, late
            time.sleep(_PAUSE_S)
        return found

    def run(self, *roles: Role, app_id: str | None = None, **cfg: Any) -> DescribeAppResponse:
        """Launch an app and wait until it has ended."""
        return self.end(self.start(*roles, app_id=app_id, **cfg))

    def lines(
        self, app_id: str, role: str = "main", k: int = 0, *, scheduler: Scheduler[Any] | None = None, **how: Any
    ) -> list[str]:
        """Return the lines that one replica has written so far; `how` as of `log_iter`."""
        texts = (scheduler or self.scheduler).log_iter(app_id, role, k, **how)
        return [*within(texts, self.timeout_s, f"the log of {role}/{k} of {app_id}, whose cursor may not move,")]

    def until_written(self, app_id: str, text: str, role: str = "main", k: int = 0) -> None:
        """Wait until a replica has written a line with this text: its program runs."""
        until(
            lambda: self.scheduler.describe(app_id) and any(text in line for line in self.lines(app_id, role, k)),
            self.timeout_s,
            f"{role}/{k} of {app_id} writes {text!r}",
        )

    def until_running(self, app_id: str, *places: tuple[str, int]) -> None:
        """Wait until app and replicas are RUNNING: an engine may report it some time after the program began."""

        def runs() -> bool:
            found = self.scheduler.describe(app_id)
            if found is None or found.state is not AppState.RUNNING:
                return False
            known = replicas(found)
            return all(place in known and known[place].state is AppState.RUNNING for place in places)

        until(runs, self.timeout_s, f"{app_id} is RUNNING")

    def until_nothing_is_alive(self, app_id: str) -> None:
        """Wait until the engine itself reports that nothing of the app runs; return at once if it does not know."""
        until(lambda: not self.engine.alive(app_id), self.timeout_s, f"nothing of {app_id} is alive")

    def histories(self, app_id: str, observers: int = 4, after_s: float = 1.0) -> list[list[AppState]]:
        """Return the states that several schedulers see at once, each change once, until some time after the end."""

        def history(_: int) -> list[AppState]:
            scheduler = self.another()
            seen: list[AppState] = []
            begun = time.monotonic()
            ended_at = float("inf")
            while time.monotonic() < min(begun + self.timeout_s, ended_at + after_s):
                found = scheduler.describe(app_id)
                assert found is not None
                if seen[-1:] != [found.state]:
                    seen.append(found.state)
                if is_terminal(found.state):
                    ended_at = min(ended_at, time.monotonic())
                # They meet in retries, which take seconds, or minutes with a pause before each.
                _pause(begun, share=0.01)
            return seen

        with ThreadPoolExecutor(observers) as pool:
            return [*pool.map(history, range(observers))]

    def traces(self, app_id: str) -> list[str]:
        """Return what scheduler and engine have of the app; an unknown one leaves nothing."""
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

    def remove(self) -> None:
        """Delete every app of this test, and see that nothing of them is left running."""
        scheduler = self.another()
        with contextlib.ExitStack() as all_of_them:
            for app_id in self._ids:
                all_of_them.callback(scheduler.delete, app_id)
        # What is inherited only cancels. The tests of `delete` show that; the others need not wait for it in vain.
        removes = has_own(scheduler, "_delete_existing")
        for app_id in self._ids:

            def is_gone(app_id: str = app_id) -> bool:
                found = scheduler.describe(app_id)
                return found is None or (not removes and is_terminal(found.state))

            what = f"{app_id} is gone; `delete` ends an app and removes its record, see `_delete_existing`"
            until(is_gone, self.timeout_s, what)
            self.until_nothing_is_alive(app_id)


class _Replicas(dict[tuple[str, int], ReplicaStatus]):
    def __missing__(self, place: tuple[str, int]) -> ReplicaStatus:
        role, k = place
        raise AssertionError(f"describe reports nothing of replica {k} of role {role!r} in `roles_statuses`: {[*self]}")


def replicas(found: DescribeAppResponse) -> dict[tuple[str, int], ReplicaStatus]:
    """Return the replicas of an app by role and number."""
    return _Replicas({(role.role, replica.id): replica for role in found.roles_statuses for replica in role.replicas})


class ContractBase:
    """What a backend declares about itself, as class attributes and fixtures.

    A subclass sets `factory`, `capabilities` and the fixtures `params` and `image`; the rest has defaults.
    """

    factory: ClassVar[str] = ""
    """`package.module:create_scheduler`, called with a session name and `params`."""
    capabilities: ClassVar[frozenset[Capability]]
    """What the scheduler promises; a test compares it with what the scheduler itself declares."""
    timeout_s: ClassVar[float] = 60.0
    """Seconds within which a short app ends on this engine, and any of the logs is read."""
    lag_s: ClassVar[float] = 0.0
    """Seconds by which the engine's view of a program and of its app may differ: from the end of a program until the
    end of its app is shown, or from that until `Engine.alive` no longer counts the program."""
    drain_s: ClassVar[float] = 0.0
    """Seconds for which a program stays after a flood, on an engine that drops what it has not copied from the pipes
    when the program has ended."""
    endless: ClassVar[int] = 20_000_000
    """Bytes of a line without an end; fewer where the engine itself cuts lines, or its stand-in takes minutes."""
    many: ClassVar[int] = 200
    """How many apps "many" are, where costs are counted."""
    xfail: ClassVar[Mapping[str, str]] = {}
    """Test name (also with its parameters, `test_x[a]`) to the reason why it fails here. A test that passes in spite
    of it is an error."""

    @pytest.fixture
    def params(self) -> dict[str, Any]:
        """Return keywords of the factory, plain JSON, so that another process makes the same scheduler."""
        return {}

    @pytest.fixture
    def unreachable_params(self) -> dict[str, Any] | None:
        """Return keywords of the factory for an engine that nobody answers at; None: there is no such thing."""
        return None

    @pytest.fixture
    def image(self) -> str:
        """Return an image or directory in which `sh` and the programs of the page for authors run."""
        return ""

    @pytest.fixture
    def program_with_a_blank(self) -> str | None:
        r"""Return a program that has a blank in its name, by its path in the image; None: there is none.

        Its args are printed, each as a line `<arg>`: an executable file with `#!/bin/sh` and `printf '<%s>\n' "$@"`.
        """
        return None

    @pytest.fixture
    def resource(self) -> Resource:
        """Return the resource of every role that is launched; small, for 50 replicas run at once."""
        return Resource(cpu=1, gpu=0, memMB=128)

    @pytest.fixture
    def cfg(self) -> dict[str, Any]:
        """Return options of every launch."""
        return {}

    @pytest.fixture
    def workspace_cfg(self, cfg: dict[str, Any]) -> dict[str, Any]:
        """Return options of every launch with a workspace."""
        return cfg

    @pytest.fixture
    def never_begins(self) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """Return fields of a role and options with which a launch is accepted, and waits for what does not come.

        None: the engine refuses such launches.
        """
        return None

    @pytest.fixture
    def engine(self) -> Engine:
        """Return the view of the engine itself."""
        return Engine()

    @pytest.fixture
    def make_scheduler(self, params: dict[str, Any]) -> Iterator[MakeScheduler]:
        """Return a function that makes a scheduler as another process would have it; all are closed at the end."""
        made: list[Scheduler[Any]] = []

        def make() -> Scheduler[Any]:
            made.append(self.create(**params))
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
            make_scheduler, engine, image=image, resource=resource, cfg=cfg, timeout_s=self.timeout_s, lag_s=self.lag_s
        )
        yield apps
        apps.remove()

    @pytest.fixture
    def make_process(self, params: dict[str, Any]) -> Iterator[MakeProcess]:
        """Return a function that starts a process with a scheduler of the same params."""
        if not self.factory:
            pytest.skip("the backend names no `factory`, so no other process can make its scheduler")
        with contextlib.ExitStack() as stack:
            yield lambda: stack.enter_context(OtherProcess(self.factory, params))

    @pytest.fixture
    def other_process(self, make_process: MakeProcess) -> OtherProcess:
        """Return a scheduler of the same params in a process of its own."""
        return make_process()

    @pytest.fixture(autouse=True)
    def _expect_failure(self, request: pytest.FixtureRequest) -> None:
        names = {request.node.name, getattr(request.node, "originalname", request.node.name)}
        for name in names & set(self.xfail):
            request.node.add_marker(pytest.mark.xfail(reason=self.xfail[name], strict=True))

    # ---- for tests -------------------------------------------------------------------------------------------

    def create(self, **params: Any) -> Scheduler[Any]:
        """Return what the factory makes of these keywords."""
        scheduler: Scheduler[Any] = pkgutil.resolve_name(self.factory)("contract", **params)
        return scheduler

    def needs_option(self, apps: Apps, name: str) -> None:
        """Skip the test where the scheduler has no option of this name."""
        if not apps.has_option(name):
            pytest.skip(f"there is no option {name!r}")

    def needs(self, capability: Capability) -> None:
        """Skip the test where the scheduler does not promise this, and its refusal is another test's matter."""
        if capability not in self.capabilities:
            pytest.skip(f"{capability.value} is not offered")

    @staticmethod
    @contextlib.contextmanager
    def refused(*words: str, error: type[Exception] | None = None) -> Iterator[None]:
        """Expect a refusal as unsupported, with all of these words, and with a cure after a semicolon."""
        with pytest.raises(error or UnsupportedError) as caught:
            yield
        missing = [word for word in words if word.lower() not in str(caught.value).lower()]
        assert not missing, f"{caught.value} does not name {missing}"
        _, _, cure = str(caught.value).partition(";")
        assert len(cure.split()) > 1, f"{caught.value} names no cure, such as '...; leave it out'"
