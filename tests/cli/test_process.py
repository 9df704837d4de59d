"""The command as a process: what it loads and leaves, its signals and pipes, and Airflow's own command."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from airflow_provider_launch.cli.commands import COMMANDS
from airflow_provider_launch.cli.main import main
from tests.airflow.conftest import engine
from tests.airflow.plugin import OPENED
from tests.cli.conftest import ROOT
from tests.support.apps import until

__all__ = ["engine"]
pytestmark = pytest.mark.engine("local")


def finished(process, timeout: float = 60.0):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def state_of(launch, handle: str) -> str:
    return launch("status", "--json", handle).data["state"]


def test_nothing_of_airflow_is_loaded_or_written(start, shell, tmp_path) -> None:
    """Airflow takes seconds, and its import writes a configuration into a home that has none."""
    code = (
        "import sys\n"
        "from airflow_provider_launch.cli.main import main\n"
        "code = main(['run', '-c', 'launch_local_default', '--wait', 'utils.sh', '--', 'true'])\n"
        "assert code == 0\n"
        "assert main(['list', '-c', 'launch_local_default']) == 0\n"
        "assert main(['status', 'local://nope/app-1']) == 2\n"
        "print(sorted(name for name in sys.modules if name.partition('.')[0] in "
        "('airflow', 'sqlalchemy', 'docker', 'kubernetes', 'boto3')))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert [path.name for path in (tmp_path / "home").iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_local_app(start, launch, number) -> None:
    """As a program in the foreground ends, by Ctrl-C and by TERM."""
    process = start("run", "-s", "local", "--log", "utils.sh", "--", "sh", "-c", "echo ready; sleep 60")
    handle = process.stdout.readline().strip()
    until(lambda: "ready" in process.stderr.readline())
    process.send_signal(number)
    code, _, err = finished(process)

    assert code == 130
    assert "the app is cancelled\n" in err
    assert "interrupted\n" in err
    assert "Traceback" not in err
    until(lambda: state_of(launch, handle) == "CANCELLED")


def test_an_interrupted_run_leaves_the_app_of_an_engine(launch, define, engine) -> None:
    """It does not end with this host, so a reader gets the command that ends it."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    interrupts = iter([signal.SIGTERM])

    def interrupt(_app_ids) -> None:
        for number in interrupts:
            signal.pthread_kill(main_thread, number)

    engine.on_describe = interrupt
    ran = launch(
        "run",
        "-c",
        define("cluster", "launch", scheduler="fake", params={"engine": engine.name}),
        "--wait",
        "utils.echo",
    )

    handle = ran.out.strip()
    assert ran.code == 130
    assert f"the app continues; cancel it with: launch cancel {handle}\n" in ran.err
    assert ran.err.endswith("interrupted\n")
    assert state_of(launch, handle) == "PENDING"


@pytest.mark.parametrize(
    "words", [("list", "-c", "cluster"), ("connections", "--test", "cluster")], ids=["list", "test"]
)
def test_a_command_closes_the_clients_that_it_has_opened(launch, define, engine, words) -> None:
    """Airflow's own command may do more in the same process."""
    define("cluster", "launch", scheduler="fake", params={"engine": engine.name})
    ran = launch(*words)

    assert ran.code == 0, ran.err
    assert [scheduler.closed for scheduler in OPENED] == [1]


@pytest.mark.parametrize("words", [("components", "utils.echo"), ("components", "utils.ecko")], ids=["good", "wrong"])
def test_a_command_leaves_the_settings_of_its_process(launch, monkeypatch, words) -> None:
    logger = logging.getLogger("airflow_provider_launch")
    handlers: list[logging.Handler] = [logging.NullHandler()]
    monkeypatch.setattr(logger, "level", logging.ERROR)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", handlers)
    before = signal.getsignal(signal.SIGTERM)
    launch(*words)

    assert (logger.level, logger.propagate, logger.handlers) == (logging.ERROR, False, handlers)
    assert signal.getsignal(signal.SIGTERM) is before


class Flushed(io.StringIO):
    """A stream whose reader has ended, which shows when it is flushed."""

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_reader_that_has_ended_does_not_change_the_code_of_an_error(shell, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdout", Flushed())

    assert main(["components", "utils.ecko"]) == 2
    assert "did you mean 'utils.echo'" in capsys.readouterr().err


def test_an_error_comes_after_the_data_before_it(launch, monkeypatch) -> None:
    """A script that reads both from one pipe gets them in order."""
    found: list[str] = []

    class Kept(io.StringIO):
        def flush(self) -> None:
            found.append(self.getvalue())

    def fail(_options, output) -> None:
        output.data("first")
        raise ValueError("second")

    monkeypatch.setattr("airflow_provider_launch.cli.apps.list_apps", fail)
    monkeypatch.setattr(sys, "stdout", Kept())

    assert main(["list"]) == 2
    assert found[-1:] == ["first\n"]


def test_an_interrupted_log_leaves_the_app(start, launch) -> None:
    handle = launch("run", "-s", "local", "utils.sh", "--", "sh", "-c", "echo ready; sleep 60").out.strip()
    process = start("log", "-f", handle)
    assert process.stdout.readline() == "[sh/0] ready\n"
    process.send_signal(signal.SIGTERM)

    assert finished(process)[0] == 130
    assert state_of(launch, handle) == "RUNNING"
    launch("cancel", handle)


@pytest.mark.parametrize("options", ["", "-f", "--json", "--tail 5000"])
def test_a_reader_that_ends_is_no_error(start, launch, options) -> None:
    script = "for i in $(seq 20000); do echo line $i; done"
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "sh", "-c", script).out.strip()
    process = start("log", *options.split(), handle)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "Error" not in err
    assert "Traceback" not in err


def test_a_stream_of_python_may_have_no_reader(shell, monkeypatch) -> None:
    """Notebooks and tests give `main` a stdout without a descriptor."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())

    assert main(["components"]) == 0


def test_any_bytes_can_be_printed_in_any_locale(start, launch) -> None:
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "printf", r"\303\274 \377\n").out.strip()
    code, out, err = finished(start("log", handle, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}))

    assert (code, err) == (0, "")
    assert out.startswith("[sh/0] \\xfc ")


def test_wrong_words_are_usage(start) -> None:
    code, out, err = finished(start("rnu"))

    assert (code, out) == (2, "")
    assert "invalid choice: 'rnu'" in err


def test_a_fault_of_ours_is_no_failed_app(launch, monkeypatch) -> None:
    """A script must not take a bug for the failure of its training."""
    monkeypatch.setattr("airflow_provider_launch.cli.apps.list_apps", lambda *_: 1 / 0)
    ran = launch("list")

    assert ran.code == 70
    assert "ZeroDivisionError" in ran.err


def test_words_are_completed(start, tmp_path) -> None:
    done = tmp_path / "completed"
    line = "launch comp"
    env = {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": str(done),
    }
    env |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    code, _, err = finished(start(env=env))

    assert code == 0, err
    assert done.read_text().split() == ["components"]


# ---- Airflow -------------------------------------------------------------------------------------------------------


@pytest.fixture
def airflow(shell, tmp_path):
    """Run Airflow's own command, with a configuration but without a database."""

    def airflow(*words: str):
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        command = [sys.executable, "-m", "airflow", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    return airflow


def test_airflow_has_the_same_commands(airflow) -> None:
    pytest.importorskip("airflow.cli.cli_config")
    from airflow.providers_manager import ProvidersManager

    if not hasattr(ProvidersManager, "cli_command_functions"):
        pytest.skip("this Airflow has no commands of providers")
    shown = airflow("launch", "--help")
    assert all(f"\n    {name}" in shown.stdout for name in COMMANDS)
    ran = airflow("launch", "run", "--json", "-s", "local", "--wait", "utils.echo", "--msg", "hello")

    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line).get("state") for line in ran.stdout.splitlines()] == [None, "SUCCEEDED"]


DAG_FILE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import AppDef, Role

print("parsed")
with DAG("d", schedule=None):
    role = Role("r", "", entrypoint="echo", args=["{{ ds }}"])
    LaunchAppOperator(task_id="t", app=AppDef("a", [role]))
    EmptyOperator(task_id="other")
"""


def test_the_request_of_a_task(start, shell, tmp_path) -> None:
    (shell / "dag.py").write_text(DAG_FILE)
    env = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    code, out, err = finished(start("dryrun", "-f", "dag.py", "d", "t", env=env), 120)

    assert code == 0, err
    assert "[0] echo '{{ ds }}'" in out
    assert "parsed" not in out

    found = json.loads(finished(start("dryrun", "--json", "-f", "dag.py", "d", "t", env=env), 120)[1])
    assert (found["dag_id"], found["task_id"]) == ("d", "t")
    assert "[0] echo '{{ ds }}'" in found["request"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("d", "other"), "launches no app"),
        (("d", "no"), "it has other, t"),
        (("no", "t"), "there is no DAG 'no' in dag.py; found: d"),
    ],
)
def test_a_task_that_is_not_there_is_named(launch, shell, words, message) -> None:
    (shell / "dag.py").write_text(DAG_FILE)
    ran = launch("dryrun", "-f", "dag.py", *words)

    assert ran.code == 2
    assert message in ran.err
