"""One step without Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from airflow_provider_launch.pipelines.run_step import find_step, run_step
from airflow_provider_launch.pipelines.validation import load

FILE = """
    parameters: {xs: [1, 2], secret_free: yes}
    dag:
      start_at: m
      steps:
        m:
          type: map
          iterate_on: xs
          iterate_as: x
          next: bad
          branch: {start_at: one, steps: {one: {type: task, command_type: shell, command: 'echo "x is $x"; export y=$((x + 1))', returns: [y], next: success}}}
        bad: {type: task, command_type: shell, command: exit 3, next: files}
        files: {type: task, command_type: shell, command: cat in.txt > out.txt, catalog: {get: in.txt, put: out.txt}, next: success}
    """


def run(path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "airflow_provider_launch.pipelines", *arguments[:1], str(path), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_step_shows_its_lines_and_what_it_hands_on(write):
    ran = run(write(FILE), "run-step", "one", "--set", "x=4")

    lines = ran.stdout.splitlines()
    assert (ran.returncode, lines[0], json.loads(lines[-1])) == (0, "x is 4", {"y": 5}), ran.stderr


def test_a_step_has_its_templates(write):
    text = "{type: task, command_type: shell, command: 'echo {{ params.x }} $DAY', executor: {type: local, config: {env: {DAY: '{{ ds_nodash }}'}}}, next: success}"

    ran = run(write(f"parameters: {{x: 5}}\ndag: {{start_at: a, steps: {{a: {text}}}}}\n"), "run-step", "a")

    assert re.fullmatch(r"5 \d{8}", ran.stdout.splitlines()[0]), ran.stdout + ran.stderr


def test_a_step_that_fails(write):
    ran = run(write(FILE), "run-step", "bad")

    assert ran.returncode == 1
    assert "FAILED" in ran.stdout


def test_a_step_finds_its_files_in_a_folder(write, tmp_path):
    write("hello\n", "data/in.txt")

    ran = run(write(FILE), "run-step", "files", "--data", str(tmp_path / "data"))

    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "data" / "out.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["run-step", "onne"], 2, "'onne' is not a task; did you mean"),
        (["run-step", "one"], 1, "is inside a map; set its element: --set x=..."),
        (["run-step", "one", "--set", "x"], 1, "--set 'x' must be NAME=VALUE"),
        (["validate"], 0, ""),
        (["run-step", "one", "--set", "x=1", "--dry-run"], 0, ""),
    ],
)
def test_what_is_wrong_is_shown(write, arguments, code, expected):
    ran = run(write(FILE), *arguments)

    assert ran.returncode == code
    assert expected in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_step_inherits_a_short_list_of_variables_and_those_that_are_named(write, monkeypatch):
    """Variables of a worker hold secrets; a name in `copy_env` is a decision of the author."""
    monkeypatch.setenv("NAMED", "1")
    monkeypatch.setenv("OTHER", "2")
    path = write("""
        executor: {type: local, config: {copy_env: [NAMED]}}
        dag:
          start_at: show
          steps: {show: {type: task, command_type: shell, command: 'echo "${PATH:+set} [$NAMED] [$OTHER]"', next: success}}
        """)

    ran = run(path, "run-step", "show")

    assert ran.stdout.splitlines()[0] == "set [1] []", ran.stderr


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 3", 1)])
def test_a_step_with_a_connection_closes_its_clients(write, monkeypatch, command, code):
    from airflow_provider_launch.hooks.launch import LaunchHook

    monkeypatch.setenv("AIRFLOW_CONN_PLACE", "launch-local://")
    step = f"{{type: task, command_type: shell, command: {command}, next: success}}"
    model = load(
        write(f"executor: {{type: local, config: {{conn_id: place}}}}\ndag: {{start_at: a, steps: {{a: {step}}}}}\n")
    )
    closed = []
    close = LaunchHook.close
    monkeypatch.setattr(LaunchHook, "close", lambda hook: closed.append(hook.launch_conn_id) or close(hook))

    assert run_step(model, find_step(model, "a")[0], {}, elements=[])[0] == code
    assert closed == ["place"]


def test_problems_of_a_file_are_shown(write):
    ran = run(write("dag: {start_at: a, steps: {a: {type: stub, next: b}}}\n"), "validate")

    assert ran.returncode == 2
    assert "pipeline.yaml:1: step 'a': 'next' names 'b', which does not exist" in ran.stderr


def test_airflow_tests_a_task(write, database, tmp_path):
    """`airflow tasks test` runs a step as in the DAG."""
    write(FILE, "desk.yaml")
    text = (
        "# airflow dag\nfrom airflow_provider_launch.pipelines import dag_from_file\ndag = dag_from_file('desk.yaml')\n"
    )
    write(text, "desk.py")
    command = [sys.executable, "-m", "airflow", "tasks", "test", "desk", "bad"]
    env = {**os.environ, "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)}

    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)

    assert "exited with code 3" in ran.stdout + ran.stderr
