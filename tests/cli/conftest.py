from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_launch.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shell(tmp_path, monkeypatch) -> Path:
    """A shell without Airflow, connections and configuration files; its apps end with the test."""
    for name in [name for name in os.environ if name.startswith(("AIRFLOW_", "LAUNCHCONFIG", "TORCHX", "LAUNCH_C"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LAUNCH_HOME", str(tmp_path / "launch"))
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "home").mkdir()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("airflow_provider_launch.runner.config.DEFAULT_CONFIG_DIRS", [str(tmp_path / "home"), "."])
    return here


@pytest.fixture
def define(shell, monkeypatch):
    """Define a connection in the environment."""

    def define(conn_id: str = "c", conn_type: str = "launch_local", **extra) -> str:
        value = json.dumps({"conn_type": conn_type, "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
        return conn_id

    return define


class Ran:
    """The result of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def data(self):
        return json.loads(self.out)

    @property
    def rows(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def launch(shell, capsys):
    """Run a command in this process."""

    def launch(*words: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(list(words))
        except SystemExit as ended:
            code = int(ended.code or 0)
        found = capsys.readouterr()
        return Ran(code, found.out, found.err)

    return launch


@pytest.fixture
def start(shell):
    """Start a command as a process; its words, and keywords of `Popen`."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **keywords) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", **keywords.pop("env", {})}
        command = [sys.executable, "-m", "airflow_provider_launch.cli", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # A job in the background of a shell ignores it, and so would its children.
        keywords.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        started.append(subprocess.Popen(command, env=env, **{**pipes, **keywords}))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
