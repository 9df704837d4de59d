"""The public API: launch, follow by handle, cancel."""

from __future__ import annotations

import copy
import re
import threading
import time
from unittest.mock import MagicMock

import pytest

from airflow_provider_launch.runner import Runner, get_runner
from airflow_provider_launch.schedulers import get_builtin_scheduler_factories, get_scheduler_factories
from airflow_provider_launch.schedulers.api import Capability, Stream
from airflow_provider_launch.schedulers.local.options import LocalConnection
from airflow_provider_launch.specs.api import AppDef, AppState, Role, Workspace
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppNotStartedError,
    AppStatusError,
    InvalidAppError,
    InvalidRunConfigException,
    MalformedAppHandleException,
    SchedulerUnavailableError,
    SessionMismatchException,
    UnknownAppException,
    UnknownSchedulerException,
)
from tests.support.fake_scheduler import FakeEngine, FakeScheduler, an_app


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def make_runner(engine):
    def make(name="session", **options):
        return Runner(name, {"fake": lambda session, **kwargs: FakeScheduler(session, engine)}, **options)

    return make


@pytest.fixture
def runner(make_runner):
    with make_runner() as runner:
        yield runner


# ---- launch ----------------------------------------------------------------------------------------------------


def test_run_returns_a_handle_of_the_session(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")

    assert handle == "fake://session/app-1"
    assert list(engine.apps) == ["app-1"]


@pytest.mark.parametrize(
    "name",
    ["LAUNCH_RESULT_PATH", "LAUNCH_ATTEMPT", "LAUNCH_REPLICA_ID", "TORCHELASTIC_ERROR_FILE", "TORCHX_RANK0_HOST"],
)
def test_an_own_value_of_a_variable_of_the_launcher_is_refused(runner, name):
    app = an_app(roles=["a", "b"])
    app.roles[1].env[name] = "mine"
    with pytest.raises(InvalidAppError, match=f"roles.1.env: the launcher sets {name} .*; leave it out, or pass"):
        runner.dryrun(app, "fake")


def test_an_own_value_of_a_variable_of_a_tracker_is_replaced_with_a_warning(runner, caplog):
    app = an_app()
    app.roles[0].env["TORCHX_JOB_ID"] = "mine"
    info = runner.dryrun(app, "fake")

    assert info.request.app.roles[0].env["TORCHX_JOB_ID"] != "mine"
    assert "role 'worker': the launcher replaces the value of TORCHX_JOB_ID" in caplog.text


def test_run_with_dryrun_starts_nothing(runner, engine):
    info = runner.run(an_app(), "fake", {"queue": "gpu"}, dryrun=True)

    assert engine.started == 0
    assert info.request.cfg["queue"] == "gpu"
    assert runner.schedule(info).startswith("fake://session/app-")


def test_the_callers_objects_stay_as_they_were(runner):
    app, cfg = an_app(replicas=2), {"tags": ["a"]}
    before = copy.deepcopy((app, cfg))
    info = runner.dryrun(app, "fake", cfg)
    info.app.roles[0].args.append("changed")
    info.request.cfg["tags"].append("changed")
    runner.run(app, "fake", cfg)

    assert (app, cfg) == before


@pytest.mark.parametrize(
    ("app", "named"),
    [
        (AppDef("app"), "role"),
        (AppDef("app", [Role("worker", "", entrypoint="")]), "entrypoint"),
        (AppDef("app", [Role("worker", "")]), "entrypoint"),
        (AppDef("app", [Role("worker", "", entrypoint="true", num_replicas=0)]), "num_replicas"),
    ],
)
def test_an_app_that_makes_no_sense_is_refused(runner, app, named):
    with pytest.raises(InvalidAppError, match=named) as caught:
        runner.dryrun(app, "fake")
    assert isinstance(caught.value, ValueError)


def test_a_misspelt_option_is_refused_with_a_proposal(runner):
    with pytest.raises(InvalidRunConfigException, match="queue"):
        runner.dryrun(an_app(), "fake", {"queu": "gpu"})


def test_every_role_gets_its_job_and_its_parent(runner, monkeypatch):
    monkeypatch.delenv("TORCHX_PARENT_RUN_ID", raising=False)
    app = an_app(roles=["a", "b"])
    env = [role.env for role in runner.dryrun(app, "fake", parent_run_id="mine").app.roles]

    assert [one["TORCHX_JOB_ID"] for one in env] == ["fake://session/${app_id}"] * 2
    assert [one["TORCHX_PARENT_RUN_ID"] for one in env] == ["mine"] * 2
    assert all(one["TORCHX_INTERNAL_SESSION_ID"] for one in env)
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "inherited")
    inherited = runner.dryrun(app, "fake", parent_run_id="mine").app.roles[0].env
    assert inherited["TORCHX_PARENT_RUN_ID"] == "inherited"


def test_an_unsupported_workspace_is_ignored_with_a_warning(runner):
    with pytest.warns(UserWarning, match="does not support workspaces"):
        runner.dryrun(an_app(), "fake", workspace="/tmp/project")
    app = an_app()
    app.roles[0].workspace = Workspace({"/tmp/project": ""})
    with pytest.warns(UserWarning, match="does not support workspaces"):
        runner.dryrun(app, "fake")


def test_the_same_key_is_the_same_app(make_runner, engine):
    """A launcher that was killed after it submitted submits again, from another process."""
    handles = {make_runner().run(an_app(), "fake", idempotency_key="2024-01-01") for _ in range(3)}

    assert len(handles) == engine.started == 1


def test_a_key_that_the_scheduler_cannot_keep_is_warned_of(make_runner, monkeypatch):
    """The second run starts a second app there."""
    monkeypatch.setattr(FakeScheduler, "capabilities", FakeScheduler.capabilities - {Capability.ADOPT})

    with pytest.warns(UserWarning, match="'fake' cannot adopt a running app"):
        make_runner().dryrun(an_app(), "fake", idempotency_key="2024-01-01")


@pytest.mark.parametrize("name", ["My App", "日本", "x" * 300, "../up", "-"])
def test_a_key_gives_an_id_that_every_scheduler_takes(runner, name):
    """Without a key these names work, and the user has not chosen an id."""
    ids = [
        str(runner.dryrun(AppDef(each, an_app().roles), "fake", idempotency_key=key).request.app_id)
        for each, key in [(name, "a"), (name, "a"), (name, "b"), (f"{name} ", "a"), (name, " a")]
    ]

    assert ids[0] == ids[1]
    assert len(set(ids)) == 4
    assert all(re.fullmatch(r"[a-z][a-z0-9-]{1,38}", each) for each in ids), ids


def test_the_same_id_for_another_app_is_a_conflict(runner):
    runner.run(an_app(), "fake", app_id="app-1")

    with pytest.raises(AppConflictError):
        runner.run(an_app(replicas=3), "fake", app_id="app-1")


def test_a_request_that_dryrun_did_not_return_is_not_scheduled(runner, engine):
    info = FakeScheduler("", engine).submit_dryrun(an_app(), {})

    with pytest.raises(ValueError, match=r"Runner\.dryrun"):
        runner.schedule(info)


def test_a_plugin_older_than_app_id_and_cfg_still_works(engine):
    class Old(FakeScheduler):
        def _submit_dryrun(self, app, cfg):
            return super()._submit_dryrun(app, cfg, app_id="its-own")

        def _validate(self, app, scheduler):
            pass

        def list(self):
            return super().list()

    runner = Runner("s", {"old": lambda session, **kwargs: Old(session, engine, "old")})

    assert runner.run(an_app(), "old", app_id="ours") == "old://s/its-own"
    assert [app.app_handle for app in runner.list("old")] == ["old://s/its-own"]


# ---- by handle -------------------------------------------------------------------------------------------------


def test_a_mock_of_a_scheduler_is_a_scheduler():
    """Unit tests of launchers have such schedulers, and every attribute of a mock exists."""
    fake = MagicMock()
    made = Runner("mine", {"mock": lambda session_name, **keywords: fake}, {"region": "eu"})

    assert made.scheduler("mock") is fake


def test_another_runner_sees_and_ends_the_app(make_runner, engine):
    handle = make_runner().run(an_app(replicas=2), "fake", app_id="app-1")
    engine.write("app-1", "worker", 1, "out\n")
    engine.write("app-1", "worker", 1, "err\n", stream=Stream.STDERR)
    other = make_runner("another session")

    assert other.status(handle).state == AppState.PENDING
    assert [role.num_replicas for role in other.describe(handle).roles] == [2]
    assert list(other.log_lines(handle, "worker", 1)) == ["out\n", "err\n"]
    assert list(other.log_lines(handle, "worker", 1, regex="e.r")) == ["err\n"]
    assert list(other.log_lines(handle, "worker", 1, streams=Stream.STDOUT)) == ["out\n"]
    other.cancel(handle)
    other.cancel(handle)
    assert engine.cancelled == ["app-1"]
    other.delete(handle)
    assert engine.apps == {}


def test_an_absent_app_is_none_or_ignored(runner):
    handle = "fake://session/no-such-app"

    assert runner.status(handle) is None
    assert runner.describe(handle) is None
    assert runner.wait(handle) is None
    runner.cancel(handle)
    runner.delete(handle)
    with pytest.raises(UnknownAppException, match="no-such-app"):
        runner.log_lines(handle, "worker")


def test_lines_of_a_replica_that_is_not_there_are_refused_at_the_call(runner):
    handle = runner.run(an_app(), "fake")

    with pytest.raises(ValueError, match="worker"):
        runner.log_lines(handle, "worker", 7)


def test_tailing_ends_with_the_app(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")
    engine.write("app-1", "worker", 0, "a\n")
    lines = iter(runner.log_lines(handle, "worker", should_tail=True))
    first = next(lines)
    engine.write("app-1", "worker", 0, "b\nc\n")
    engine.state("app-1", AppState.SUCCEEDED)

    assert [first, *lines] == ["a\n", "b\n", "c\n"]


def test_list_gives_handles(runner):
    runner.run(an_app(), "fake", app_id="app-1")

    assert [(app.app_handle, app.name) for app in runner.list("fake")] == [("fake://session/app-1", "app")]


@pytest.mark.parametrize("action", ["cancel", "delete"])
def test_check_session_protects_apps_of_other_sessions(make_runner, engine, action):
    handle = make_runner("mine").run(an_app(), "fake")
    careful = make_runner("other", check_session=True)

    with pytest.raises(SessionMismatchException, match="other"):
        getattr(careful, action)(handle)
    assert careful.status(handle).state == AppState.PENDING


@pytest.mark.parametrize("handle", ["fake://session/", "session/app", "app"])
def test_an_invalid_handle_is_refused(runner, handle):
    with pytest.raises(MalformedAppHandleException):
        runner.status(handle)


def test_an_unknown_scheduler_is_reported_with_the_valid_ones(runner):
    with pytest.raises(UnknownSchedulerException, match=r"slurmy.*fake") as caught:
        runner.run(an_app(), "slurmy")
    assert isinstance(caught.value, KeyError)


def test_stop_is_the_older_name_of_cancel(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")

    with pytest.warns(PendingDeprecationWarning):
        runner.stop(handle)
    assert engine.cancelled == ["app-1"]


# ---- wait ------------------------------------------------------------------------------------------------------


def test_wait_returns_the_end(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")
    threading.Timer(0.1, engine.state, ("app-1", AppState.FAILED)).start()

    assert runner.wait(handle, 0.02).state == AppState.FAILED


def test_wait_gives_up_after_its_time(runner):
    handle = runner.run(an_app(), "fake")
    began = time.monotonic()

    with pytest.raises(TimeoutError, match="PENDING"):
        runner.wait(handle, 10, timeout=0.2)
    assert time.monotonic() - began < 1


def test_wait_gives_up_in_time_while_a_request_hangs(runner, engine):
    """A server that does not answer must not block a program beyond its timeout."""
    handle = runner.run(an_app(), "fake", app_id="app-1")
    engine.state("app-1", AppState.RUNNING)
    is_over = threading.Event()
    requests = iter(range(1))
    engine.on_describe = lambda _ids: None if next(requests, None) is not None else is_over.wait(20)
    began = time.monotonic()

    with pytest.raises(TimeoutError, match="RUNNING"):
        runner.wait(handle, 0.05, timeout=0.5)
    took_s = time.monotonic() - began
    is_over.set()

    assert took_s < 3


def test_wait_survives_errors_in_a_row_up_to_its_budget(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")
    engine.state("app-1", AppState.SUCCEEDED)
    failures = iter(range(3))

    def fail(_ids):
        if next(failures, None) is not None:
            raise SchedulerUnavailableError("no route to host")

    engine.on_describe = fail
    assert runner.wait(handle, 0.01, max_errors=3).state == AppState.SUCCEEDED
    failures = iter(range(3))
    with pytest.raises(SchedulerUnavailableError, match="no route"):
        runner.wait(handle, 0.01, max_errors=2)


def test_wait_does_not_take_unknown_for_running(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")
    engine.state("app-1", AppState.UNKNOWN)

    with pytest.raises(AppStatusError, match="UNKNOWN"):
        runner.wait(handle, 0.01, max_errors=2)


def test_wait_cancels_an_app_that_has_not_started_in_time(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")
    engine.state("app-1", AppState.PENDING, "the queue is full")

    with pytest.raises(AppNotStartedError, match="start_limit_s; it waited for: the queue is full"):
        runner.wait(handle, 0.02, start_limit_s=0.1)
    assert engine.cancelled == ["app-1"]


def test_wait_does_not_limit_an_app_that_has_started(runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")
    engine.state("app-1", AppState.RUNNING)
    threading.Timer(0.2, engine.state, ("app-1", AppState.SUCCEEDED)).start()

    assert runner.wait(handle, 0.02, start_limit_s=0.05).state == AppState.SUCCEEDED


def test_wait_cancels_no_app_of_another_session(make_runner, runner, engine):
    handle = runner.run(an_app(), "fake", app_id="app-1")

    with pytest.raises(AppNotStartedError):
        make_runner("other", check_session=True).wait(handle, 0.02, start_limit_s=0.05)
    assert engine.cancelled == []


# ---- schedulers ------------------------------------------------------------------------------------------------


def test_parameters_may_be_meant_for_one_backend():
    seen = {}

    def factory(backend):
        def create(session, **kwargs):
            seen[backend] = (session, kwargs)
            return FakeScheduler(session, backend=backend)

        return create

    runner = Runner("s", {"a": factory("a"), "b": factory("b")}, None, {"x": 1, "a": {"x": 2, "y": 3}, "z": {"k": 1}})
    for backend in ("a", "b", "a"):
        runner.scheduler(backend)

    assert seen == {"a": ("s", {"x": 2, "y": 3, "z": {"k": 1}}), "b": ("s", {"x": 1, "z": {"k": 1}})}


def test_close_closes_created_schedulers_and_can_be_repeated(make_runner):
    with make_runner() as runner:
        scheduler = runner.scheduler("fake")
    runner.close()

    assert scheduler.closed == 1


def test_the_builtin_schedulers_are_found_by_name():
    runner = get_runner()

    assert runner.name() == "torchx"
    assert runner.scheduler_backends()[0] == "local"
    assert list(get_scheduler_factories(group="no.such.group", skip_defaults=True)) == []
    with pytest.warns(FutureWarning):
        assert get_runner("mine").name() == "mine"


def test_an_older_name_means_the_new_backend(engine):
    runner = Runner("s", {"local": lambda session, **kwargs: FakeScheduler(session, engine, "local")})
    handle = runner.run(an_app(), "local_cwd", app_id="x")

    assert handle == "local://s/x"
    assert runner.status("local_cwd://s/x").state == AppState.PENDING


def test_options_are_read_from_text(runner):
    assert runner.cfg_from_str("fake", "queue=a,tags=x;y", "queue=b") == {"queue": "b", "tags": ["x", "y"]}


@pytest.mark.parametrize(
    ("backend", "name", "meant"),
    [("local", "rooot", "root"), ("kubernetes", "namespce", "namespace"), ("slurm", "ssh_hots", "ssh_host")],
)
def test_a_misspelt_parameter_of_a_scheduler_is_refused(backend, name, meant):
    """It would launch into the default namespace, with the default account."""
    with (
        Runner("s", scheduler_params={backend: {name: "x"}}) as runner,
        pytest.raises(
            InvalidRunConfigException, match=f"{backend}.*unknown parameter '{name}'; did you mean '{meant}'"
        ),
    ):
        runner.scheduler(backend)


def test_a_parameter_that_no_scheduler_knows_is_refused():
    factories = get_builtin_scheduler_factories()
    with Runner("s", factories, scheduler_params={"cache_size": -1}) as runner:
        for name in factories:
            with pytest.raises(InvalidRunConfigException, match="unknown parameter 'cache_size'"):
                runner.scheduler(name)
    with Runner("s", factories, scheduler_params={"ssh_host": "x"}) as runner:
        assert runner.scheduler("local")


def test_a_scheduler_whose_parameter_is_refused_is_closed():
    made: list[FakeScheduler] = []

    class Strict(FakeScheduler):
        connection_type = LocalConnection

    def make(session_name, **_):
        made.append(Strict(session_name))
        return made[-1]

    with Runner("s", {"fake": make}, scheduler_params={"fake": {"rooot": "x"}}) as runner:
        for _ in range(2):
            with pytest.raises(InvalidRunConfigException, match="unknown parameter 'rooot'"):
                runner.scheduler("fake")

    assert [scheduler.closed for scheduler in made] == [1, 1]


def test_a_misspelt_parameter_is_warned_of_where_a_plugin_may_know_it(caplog):
    factories = {**get_builtin_scheduler_factories(), "plugin": FakeScheduler}
    with Runner("s", factories, scheduler_params={"namespce": "x", "image_repo": "y"}) as runner:
        runner.scheduler("kubernetes")

    (text,) = [record.getMessage() for record in caplog.records]
    assert text == "scheduler 'kubernetes' ignores an unknown parameter 'namespce'; did you mean 'namespace'?"


def test_a_misspelt_option_in_a_text_is_refused(runner):
    with pytest.raises(InvalidRunConfigException, match="unknown option 'queu'; did you mean 'queue'"):
        runner.cfg_from_str("fake", "queue=a", "queu=b")
