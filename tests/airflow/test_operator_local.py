"""The operator through the real task runner, on real local processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_provider_launch._task.outcome import failure
from airflow_provider_launch._task.task_log import PIECE_BYTES
from airflow_provider_launch.hooks.local import LocalLaunchHook
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.schedulers.responses import DescribeAppResponse
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import AppFailedError, InvalidAppError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus
from tests.airflow.support import FakeExecutionApi, a_dag, launch, run_task, sh
from tests.support.repeats import often

pytestmark = pytest.mark.engine("local")


def describe(handle: str):
    hook = LocalLaunchHook()
    try:
        return hook.scheduler.describe(handle.rpartition("/")[2])
    finally:
        hook.close()


def alive(mark: str) -> list[str]:
    """Processes whose command line has the mark."""
    # Not by `ps`, which a bare machine lacks.
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if mark in line]


def test_success_hands_over_handle_codes_and_result() -> None:
    api = FakeExecutionApi()
    task = launch(
        sh('echo "hello"; echo \'{"n": 3}\' > $LAUNCH_RESULT_PATH', name="first"), sh("echo hello", num_replicas=2)
    )

    ran = run_task(task, api)

    assert ran.error is None
    assert ran.state == "success"
    handle = api.xcoms["t", "handle"]
    assert handle.startswith("local://launch_local_default/test-dag-t-")
    assert api.xcoms["t", "return_value"] == {
        "handle": handle,
        "state": "SUCCEEDED",
        "attempts": 1,
        "roles": {"first": [0], "worker": [0, 0]},
        "result": {"n": 3},
    }
    assert sorted(line for line in ran.lines if line.endswith("hello")) == [
        "[first/0] hello",
        "[worker/0] hello",
        "[worker/1] hello",
    ]
    assert "worker" in api.rendered["request"]


def test_results_of_all_replicas_are_a_list() -> None:
    api = FakeExecutionApi()
    script = "test $LAUNCH_REPLICA_ID = 1 || echo $LAUNCH_REPLICA_ID > $LAUNCH_RESULT_PATH"
    task = launch(sh(script, num_replicas=3), results="all")

    assert run_task(task, api).error is None
    assert api.xcoms["t", "return_value"]["result"] == [0, None, 2]


def test_warnings_about_the_app_are_in_the_log() -> None:
    """The program gets this text, and the app may even succeed with it."""
    ran = run_task(launch(Role("worker", "", entrypoint="true", env={"PORT": "$LAUNCH_PORT_X_Y"})), FakeExecutionApi())

    assert ran.error is None
    assert ran.logged("role 'worker': env PORT: no shell expands $LAUNCH_PORT_X_Y, so the program gets this text")


@pytest.mark.parametrize("value", ["All", None, 1])
def test_unknown_results_are_refused(value: object) -> None:
    with pytest.raises(InvalidAppError, match=r"results=.* must be one of 'first', 'all'"):
        launch(sh("true"), results=value)


def test_the_error_shows_the_error_file_of_the_replica() -> None:
    """The decorator `record` of PyTorch writes the exception there, and other libraries print lines at exit."""
    script = """echo '{"message": {"message": "ValueError: only here", "extraInfo": {"timestamp": "1"}}}' \
        > $TORCHELASTIC_ERROR_FILE; i=0; while [ $i -lt 15 ]; do i=$((i + 1)); echo "wandb: $i"; done; exit 1"""
    ran = run_task(launch(sh("sleep 60", name="a"), sh(script, name="b")), FakeExecutionApi())

    assert isinstance(ran.error, AppFailedError)
    text = str(ran.error)
    assert "b/0 wrote to its error file:\n  ValueError: only here\nlast lines of b/0:" in text
    assert "wandb: 15" in text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('{"message": "no such column"}', ["no such column"]),
        ("plain\0text", ["plain\ufffdtext"]),
        ("\n".join(f"line {n}" for n in range(30)), [*(f"line {n}" for n in range(20)), "... 10 more lines"]),
        ("x" * 5000, ["x" * 1000]),
    ],
)
def test_the_error_file_of_a_program_is_shown_within_limits(written: str, shown: list[str]) -> None:
    replica = ReplicaStatus(0, AppState.FAILED, "w", "", structured_error_msg=written, exit_code=1)
    response = DescribeAppResponse("id", AppState.FAILED, roles_statuses=[RoleStatus("w", [replica])])
    text = str(failure("local://s/id", response, {}))

    assert text.partition("w/0 wrote to its error file:")[2] == "".join(f"\n  {line}" for line in shown)


def test_states_stand_in_the_log_once_each() -> None:
    ran = run_task(launch(sh("sleep 0.6")), FakeExecutionApi())

    states = [line for line in ran.lines if re.match(r"app test-dag-t-\w+: (.* -> )?[A-Z]+", line)]
    assert states[-1].endswith("SUCCEEDED")
    assert len(states) == len(set(states))


def test_failure_is_reported_in_a_few_lines() -> None:
    api = FakeExecutionApi()
    ran = run_task(launch(sh("echo first; echo why >&2; exit 3", max_retries=0)), api)

    assert ran.state == "failed"
    assert isinstance(ran.error, AppFailedError)
    text = str(ran.error)
    assert "role 'worker' replica 0 (attempt 0" in text
    assert "exited with code 3" in text
    assert {"  first", "  why"} <= set(text.splitlines())
    assert len(text.splitlines()) < 15
    assert ("t", "return_value") not in api.xcoms
    xcom = api.xcoms["t", "app"]
    assert (xcom["state"], xcom["attempts"], xcom["roles"]) == ("FAILED", 1, {"worker": [3]})
    assert api.store["launch"]["state"] == "closed"


def test_a_signal_is_named() -> None:
    ran = run_task(launch(sh("kill -SEGV $$$$")), FakeExecutionApi())

    assert "SIGSEGV" in str(ran.error)


def test_stderr_has_its_own_level() -> None:
    ran = run_task(launch(sh("echo out; echo err >&2")), FakeExecutionApi())

    levels = {entry["event"]: entry["level"] for entry in ran.log}
    assert (levels["[worker/0] out"], levels["[worker/0] err"]) == ("info", "warning")


@pytest.mark.parametrize("text", ['it\'s "q"', "$HOME $$", "zwei\nZeilen\n", "ünïcødé ☃", "a\rb", "  ", "{not} %s %d"])
def test_odd_text_reaches_the_job_unchanged(text, tmp_path) -> None:
    """Jinja drops a final newline, a shell would expand a dollar."""
    program = "import sys; open(sys.argv[1], 'w', newline='').write(sys.argv[2])"
    escaped = text.replace("$", "$$")
    role = Role("w", "", entrypoint="python3", args=["-c", program, str(tmp_path / "out"), escaped])

    ran = run_task(launch(role), FakeExecutionApi())

    assert ran.error is None
    assert (tmp_path / "out").read_bytes().decode() == text


def test_the_log_is_complete_whatever_is_written() -> None:
    program = (
        "import sys; w = sys.stdout.buffer.write\n"
        "w('é'.encode() * 500_000 + b'\\n'); w(b'50%\\r100%\\n'); w(b'bad \\xff byte\\n'); w(b'100 %s {x}\\n')\n"
        "w(b'::group::x ::endgroup::\\n'); w(b'no newline')"
    )
    ran = run_task(launch(Role("w", "", entrypoint="python3", args=["-c", program])), FakeExecutionApi())

    lines = [str(entry["event"]) for entry in ran.log if str(entry["event"]).startswith("[w/0")]
    parts = [line for line in lines if re.match(r"\[w/0 \d+/\d+\] ", line)]
    assert "".join(part.partition("] ")[2] for part in parts) == "é" * 500_000
    assert all(len(part.encode()) < PIECE_BYTES + 40 for part in parts)
    rest = [line for line in lines if line not in parts]
    assert rest[:3] == ["[w/0] 100%", "[w/0] bad \ufffd byte", "[w/0] 100 %s {x}"]
    assert "::group::" not in rest[3]
    assert rest[3].replace("\u200b", "") == "[w/0] ::group::x ::endgroup::"
    assert rest[4] == "[w/0] no newline"


@pytest.mark.parametrize("as_dict", [False, True])
def test_native_rendering_gives_programs_text(as_dict: bool) -> None:
    """A number, a list or a flag that Jinja makes of a template is an argument all the same."""
    values = ["{{ 0.1 }}", "{{ [1, 'a'] }}", "{{ {'a': None} }}", "{{ true }}", "{{ none }}"]
    app = AppDef("app", [Role("w", "", entrypoint="printf", args=["%s|", *values, "{{ 7 }}"], env={"A": "{{ 1 }}"})])
    with DAG("test_dag", schedule=None, render_template_as_native_obj=True):
        task = LaunchAppOperator(task_id="t", app=app_to_dict(app) if as_dict else app)

    assert run_task(task, FakeExecutionApi()).logged('[w/0] 0.1|[1, "a"]|{"a": null}|True|None|7|')


def test_templates_are_rendered_in_copies() -> None:
    role = sh("echo {{ run_id }} $${A}", env={"A": "{{ ti.task_id }}"})
    app = AppDef("app-{{ run_id }}", [role])
    task = launch(app=app)

    ran = run_task(task, FakeExecutionApi())

    assert ran.logged("[worker/0] test_run t")
    assert role.args[1] == "echo {{ run_id }} $${A}"
    assert role.env == {"A": "{{ ti.task_id }}"}


def test_a_callable_gives_the_app() -> None:
    def make(context, jinja_env):
        return AppDef("app", [sh(f"echo {context['run_id']} '{{{{ no }}}}'")])

    ran = run_task(launch(app=make), FakeExecutionApi())

    assert ran.logged("[worker/0] test_run {{ no }}")


def test_a_dict_of_the_dag_file_is_rendered() -> None:
    app = {"name": "a", "roles": [{"name": "w", "image": "", "entrypoint": "echo", "args": ["{{ run_id }}"]}]}

    assert run_task(launch(app=app), FakeExecutionApi()).logged("[w/0] test_run")


def test_an_app_of_an_xcom_is_data() -> None:
    api = FakeExecutionApi()
    app = {"name": "a", "roles": [{"name": "w", "image": "", "entrypoint": "echo", "args": ["{{ run_id }}"]}]}
    with a_dag():
        maker = BaseOperator(task_id="maker")
        task = LaunchAppOperator(task_id="t", app=maker.output)
    api.xcoms["maker", "return_value"] = app

    assert maker.task_id in task.upstream_task_ids
    assert run_task(task, api).logged("[w/0] {{ run_id }}")


def test_mapped_tasks_do_not_mix() -> None:
    api, count = FakeExecutionApi(), often(10, 100)
    apps = [
        AppDef(f"app{i}", [Role("w", "", entrypoint="echo", args=["{{ ti.map_index }}", str(i)])]) for i in range(count)
    ]
    with a_dag():
        task = LaunchAppOperator.partial(task_id="t", wait=False).expand(app=apps)

    for index in range(count):
        api.store = {}  # the store of each task instance is its own
        assert run_task(task, api, map_index=index).error is None

    handles = {api.xcoms["t", "handle", index] for index in range(count)}
    assert len(handles) == count
    deadline = time.monotonic() + 60
    hook = LocalLaunchHook()
    for index in range(count):
        app_id = api.xcoms["t", "handle", index].rpartition("/")[2]
        while hook.scheduler.describe(app_id).state != AppState.SUCCEEDED:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert [*hook.scheduler.log_iter(app_id, "w")] == [f"{index} {index}\n"]


def test_wait_false_returns_the_same_form_at_once() -> None:
    api = FakeExecutionApi()
    started = time.monotonic()
    ran = run_task(launch(sh("sleep 20", num_replicas=2), wait=False), api)

    assert ran.error is None
    assert time.monotonic() - started < 10
    value = api.xcoms["t", "return_value"]
    assert value == {**value, "state": "SUBMITTED", "roles": {"worker": [None, None]}, "result": None, "attempts": 1}
    hook = LocalLaunchHook()
    hook.scheduler.cancel(value["handle"].rpartition("/")[2])
    hook.close()


def test_a_skip_code_skips() -> None:
    assert run_task(launch(sh("exit 99"), skip_on_exit_code=99), FakeExecutionApi()).state == "skipped"
    assert run_task(launch(sh("exit 98"), skip_on_exit_code=[99]), FakeExecutionApi()).state == "failed"


def test_time_limit_ends_the_app() -> None:
    ran = run_task(launch(sh("sleep 60"), time_limit_s=1, cfg={"grace_s": 1}), FakeExecutionApi())

    assert ran.state == "failed"


def test_the_requests_secrets_are_masked() -> None:
    api = FakeExecutionApi()
    run_task(launch(sh("true", env={"MY_PASSWORD": "hunter2hunter2"})), api)

    assert "hunter2hunter2" not in api.rendered["request"]


@pytest.mark.parametrize("delay", [index * 0.12 for index in range(0, 20, often(3, 1))])
def test_sigterm_is_never_a_success_and_leaves_nothing_alive(delay) -> None:
    """At any moment, also during the launch; the signal comes as a worker sends it, to the whole process."""
    mark = f"31.{time.monotonic_ns()}"
    api = FakeExecutionApi()
    task = launch(sh(f"trap '' TERM; sleep {mark} & wait; sleep {mark}"), cfg={"grace_s": 0.2})
    main = threading.main_thread().ident
    timer = threading.Timer(delay + 0.02, lambda: signal.pthread_kill(main, signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    # Before the task runner has its own handler the signal would end pytest.
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    timer.start()
    try:
        ran = run_task(task, api)
    finally:
        timer.join()
        signal.signal(signal.SIGTERM, before)

    assert ran.state == "failed"
    deadline = time.monotonic() + 15
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(mark) == []


def test_execution_timeout_cancels_the_app() -> None:
    from datetime import timedelta

    mark = f"32.{time.monotonic_ns()}"
    ran = run_task(launch(sh(f"sleep {mark}"), execution_timeout=timedelta(seconds=1.5)), FakeExecutionApi())

    assert ran.state == "failed"
    deadline = time.monotonic() + 15
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert alive(mark) == []


def test_on_kill_leave_leaves_the_app_to_the_next_try() -> None:
    api = FakeExecutionApi(retries=1)
    task = launch(sh("sleep 3; echo done"), on_kill="leave")
    main = threading.main_thread().ident
    threading.Timer(1.2, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    before = signal.getsignal(signal.SIGTERM)
    try:
        first = run_task(task, api)
    finally:
        signal.signal(signal.SIGTERM, before)
    handle = api.xcoms["t", "handle"]
    second = run_task(task, api, try_number=2)

    assert first.state == "up_for_retry"
    assert second.state == "success"
    assert api.xcoms["t", "handle"] == handle
    assert second.logged("[worker/0] done")


def test_the_worker_environment_does_not_reach_the_app(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "geheim")
    ran = run_task(launch(sh("env; echo pid $$")), FakeExecutionApi())

    assert ran.logged("PATH=")
    assert not ran.logged("geheim")
    assert os.environ["AIRFLOW__CORE__FERNET_KEY"] == "geheim"


def test_a_time_limit_is_the_cause_and_the_end_of_the_replica_its_effect(api) -> None:
    ran = run_task(launch(sh("exec sleep 60"), time_limit_s=1), api)
    text = str(ran.error)

    assert ran.state == "failed"
    assert re.search(r"^[^;]*time limit[^;]*; role 'worker' replica 0", text), text


def test_a_template_keeps_its_final_line_feed() -> None:
    """Jinja takes it away, and a file or a here-document without it is another one."""
    task = launch(sh("true"))

    assert task.render_template("{{ n }}\n", {"n": 1}) == "1\n"
    assert task.render_template("{{ n }}", {"n": 1}) == "1"


def test_only_options_stay_texts_in_a_native_dag() -> None:
    """Content that is rendered later keeps its own type."""
    with DAG("test_dag", schedule=None, render_template_as_native_obj=True):
        task = LaunchAppOperator(task_id="t", app=AppDef("app", [sh("true")]), cfg={"working_dir": "{{ '3.10' }}"})
    env = task.get_template_env()

    assert task.render_template(task.cfg, {}, env) == {"working_dir": "3.10"}
    assert task.render_template("{{ '3.10' }}", {}, env) == 3.1
