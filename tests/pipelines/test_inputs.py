"""Inputs of a step: arguments, variables, and settings that are templates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.pipelines import dag_from_file, executors
from airflow_provider_launch.pipelines.apps import LARGEST_VARIABLE, Inputs, build_app, references_of
from airflow_provider_launch.pipelines.parameters import returned_values
from airflow_provider_launch.schedulers._kit.refusals import refuse_pod_fields
from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.specs import AppDef
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import macros

NUMBERS = ("cpu", "gpu", "memory_mb", "replicas")
VALUES = macros.Values(img_root="/", app_id="a", replica_id="0", rank0_env="X")


def built(path: Any, parameters: dict[str, Any], step: str = "one", **context: Any) -> Any:
    """Return the first role of the app of a step, and the options of its launch."""
    task = dag_from_file(path).get_task(step)
    run = SimpleNamespace(conf={}, run_id="r")
    whole: Any = {"params": {}, "dag_run": run, "task": task, "dag": task.dag, "ds": "2026-01-02", **context}
    task.render_template_fields(whole)
    rendered, place = task._rendered(whole)
    app, cfg = build_app(task.model, rendered, place, Inputs(parameters, references=references_of(task.step)))
    return app.roles[0], cfg


def started(role: Any, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the program of a role."""
    env = {name: VALUES.substitute(text) for name, text in role.env.items()}
    command = [role.entrypoint, *(VALUES.substitute(text) for text in role.args)]
    return subprocess.run(
        command, env={"PATH": os.environ["PATH"], **env, **more}, capture_output=True, text=True, check=False
    )


def one(**fields: Any) -> str:
    step = {"type": "task", "next": "success", **fields}
    return json.dumps({"dag": {"start_at": "one", "steps": {"one": step}}}) + "\n"


def test_arguments_give_a_function_the_date_of_the_run(write, tmp_path):
    write("def step(day, rows, more=0):\n    return {'got': [day, rows, more]}\n", "mine_of_args.py")
    path = write(one(command="mine_of_args.step", args={"day": "{{ ds }}", "rows": "$count"}))

    role, _ = built(path, {"count": 5, "day": "hidden"})

    ran = started(role, LAUNCH_RESULT_PATH=str(tmp_path / "result"))
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "result").read_text()) == {"got": ["2026-01-02", 5, 0]}


def test_arguments_are_variables_of_a_shell_command(write):
    path = write(one(command_type="shell", command="echo $day $PATH", args={"day": "{{ ds }}", "PATH": "/mine"}))

    ran = started(built(path, {})[0])

    assert ran.stdout == f"2026-01-02 {os.environ['PATH']}\n"


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize(
    ("fields", "parameters", "command", "expected"),
    [
        ({"args": {"day": "x"}}, {}, "export day=x", "x"),
        ({"args": {"day": "x"}}, {}, "export day=y", "y"),
        ({"args": {"day": "x"}}, {}, "export MAGNUS_PRM_day=x", "x"),
        ({"args": {"day": "x"}}, {}, "export MAGNUS_PRM_day=y", "y"),
        ({"args": {"day": "x"}}, {"day": "of the run"}, "export day=x", "x"),
        ({"args": {"day": "$other"}}, {"day": "of the run", "other": "x"}, "true", "x"),
        ({"executor": {"type": "local", "config": {"env": {"day": "x"}}}}, {}, "export day=x", "x"),
        ({"executor": {"type": "local", "config": {"env": {"day": "x"}}}}, {"day": "of the run"}, "export day=x", "x"),
        ({}, {"day": "x"}, "export day=x", "x"),
        ({}, {"day": "x"}, "export MAGNUS_PRM_day=y", "y"),
    ],
)
def test_a_command_returns_a_variable_that_it_sets_to_the_value_that_it_has(
    write, tmp_path, shell, fields, parameters, command, expected
):
    """The step failed with "did not return day", or gave the value of the run to later steps."""
    path = write(one(command_type="shell", command=command, returns=["day"], **fields))
    role, _ = built(path, parameters)
    role.entrypoint = shell

    ran = started(role, LAUNCH_RESULT_PATH=str(tmp_path / "result"))

    assert ran.returncode == 0, ran.stderr
    document = json.loads((tmp_path / "result").read_text())
    assert returned_values(document, ["day"], given=parameters, step="one") == {"day": expected}


def test_a_variable_of_the_program_around_it_is_returned(write, tmp_path):
    path = write(one(command_type="shell", command="export ZONE=UTC", returns=["ZONE"]))

    started(built(path, {})[0], LAUNCH_RESULT_PATH=str(tmp_path / "result"), ZONE="UTC")

    assert json.loads((tmp_path / "result").read_text()) == {"$env": {"ZONE": "UTC"}}


def test_a_secret_that_a_command_leaves_alone_is_not_returned(write, tmp_path):
    path = write(one(command_type="shell", command="true", returns=["TOKEN"], secrets=["TOKEN"]))
    task = dag_from_file(path).get_task("one")
    app, _ = build_app(task.model, task.step, task.place, Inputs(secrets={"TOKEN": "hush"}))

    started(app.roles[0], LAUNCH_RESULT_PATH=str(tmp_path / "result"))

    assert json.loads((tmp_path / "result").read_text()) == {"$env": {}}


def test_a_function_returns_a_variable_that_it_sets_to_the_value_that_it_has(write, tmp_path):
    write("import os\ndef step(day):\n    os.environ['MAGNUS_PRM_day'] = day\n", "mine_of_same.py")
    role, _ = built(write(one(command="mine_of_same.step", args={"day": "x"}, returns=["day"])), {})

    ran = started(role, LAUNCH_RESULT_PATH=str(tmp_path / "result"))

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads((tmp_path / "result").read_text()) == {"day": "x"}


def test_functions_have_parameters_as_variables(write):
    """Programs that a function starts, and those written for magnus, read them there."""
    role, _ = built(write(one(command="m.f")), {"x": [1]})

    assert {role.env[f"{prefix}x"] for prefix in ("LAUNCH_PARAM_", "MAGNUS_PRM_", "RUNNABLE_PRM_")} == {"[1]"}
    assert "x" not in role.env


@pytest.mark.parametrize("returns", [None, ["small"]])
def test_a_shell_step_starts_with_large_parameters(write, tmp_path, returns):
    """Linux starts no program with a variable of more than 128 KB."""
    large = {"files": ["ä" * 40] * 3500, "many": "x" * (LARGEST_VARIABLE - 10), "small": 1}
    more = {} if returns is None else {"returns": returns}
    command = "export small=2 MAGNUS_PRM_new=3; echo ${files:-unset}"
    path = write(one(command_type="shell", command=command, **more))

    ran = started(built(path, large)[0], LAUNCH_RESULT_PATH=str(tmp_path / "result"))

    assert (ran.returncode, ran.stdout) == (0, "unset\n"), ran.stderr[-300:]
    names = {"small"} if returns else {"MAGNUS_PRM_new"}
    assert set(json.loads((tmp_path / "result").read_text())["$env"]) == names


@pytest.mark.parametrize("size", [0, LARGEST_VARIABLE])
def test_a_text_of_a_program_becomes_no_field_of_a_pod(write, size):
    """Kubernetes would refuse a field that does not exist, and other engines each: no later step could start."""
    text = "[FIELD_PATH]spec.nodeName"
    path = write(one(command_type="shell", command="echo ${LAUNCH_PARAM_x:-unset} ${x:-unset}"))

    for shift in range(16) if size else [0]:
        many = ("x" * shift + text) * (size // 16)
        role, _ = built(path, {"x": text, "y": many})

        assert not [name for name, each in role.env.items() if each.startswith(FIELD_PATH)]
        whole = role.env.get("LAUNCH_PARAMETERS") or "".join(
            role.env[f"LAUNCH_PARAMETERS_{at}"] for at in range(sum("LAUNCH_PARAMETERS_" in each for each in role.env))
        )
        assert json.loads(whole) == {"x": text, "y": many}
        refuse_pod_fields(AppDef("a", [role]), "local")


def test_a_function_gets_large_parameters(write, tmp_path):
    large = {"files": [f"{at}-ä{'x' * 30}" for at in range(5000)]}
    write("def step(files):\n    return {'count': len(files), 'last': files[-1]}\n", "mine_of_large.py")

    ran = started(built(write(one(command="mine_of_large.step")), large)[0], LAUNCH_RESULT_PATH=str(tmp_path / "r"))

    assert ran.returncode == 0, ran.stderr[-300:]
    assert json.loads((tmp_path / "r").read_text()) == {"count": 5000, "last": large["files"][-1]}


def test_the_program_leaves_room_in_a_request(write):
    """AWS Batch accepts 24 KB, and the record of the launch is a second copy of the program there."""
    role, _ = built(write(one(command="m.f", executor={"type": "aws-batch", "config": {"image": "i"}})), {})

    assert len(json.dumps(role.args)) < 10_000


def test_a_command_that_is_no_template_stays_as_it_is(write):
    path = write(one(command_type="shell", command="A=abc; echo ${#A} '{{ ds }}'", template=False))

    assert started(built(path, {})[0]).stdout == "3 {{ ds }}\n"


def test_settings_are_templates(write):
    """magnus replaces `$x` in all values of a configuration file."""
    config = {"image": "{{ ds }}", "mounts": ["/{{ ds }}:/data"], "code_dir": "/{{ ds }}", "network": "{{ ds }}"}
    path = write(one(command="m.f", executor={"type": "local-container", "config": config}))

    role, cfg = built(path, {})

    assert (role.image, role.mounts[0].src_path) == ("2026-01-02", "/2026-01-02")
    assert (role.env["LAUNCH_CODE_DIR"], cfg["network"]) == ("/2026-01-02", "2026-01-02")


def test_settings_that_are_numbers_may_be_templates(write):
    path = write(one(command="m.f", executor={"type": "local", "config": dict.fromkeys(NUMBERS, "{{ params.n }}")}))

    role, _ = built(path, {}, params={"n": 3})

    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB, role.num_replicas) == (3, 3, 3, 3)


def test_the_page_lists_each_setting_that_is_no_template(checkout):
    text = (checkout / "docs" / "pipelines.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("Settings that shape the DAG are not templates"))
    listed = {*re.findall(r"`(\w+)`", line.partition(". ")[0])} - {"type"}

    rendered = {*executors._TEMPLATES, *executors._NUMBERS, "env", "conn_id"}

    assert {*executors.setting_names()} - rendered - {"auto_remove_container"} == listed


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["-1", "many", "1.5", "", pytest.param("9" * 5000, id="long")])
def test_a_template_that_gives_no_number_is_named(write, name, value):
    path = write(one(command="m.f", executor={"type": "local", "config": {name: "{{ params.n }}"}}))

    with pytest.raises(Exception, match=f"setting '{name}' must be a whole number of at least [01]; its template"):
        built(path, {}, params={"n": value})


def test_parameters_that_look_like_secrets_are_masked_in_every_variable(write, monkeypatch):
    from airflow.sdk.log import redact

    path = write(one(command_type="shell", command="true"))
    task = dag_from_file(path).get_task("one")
    monkeypatch.setattr(task, "_rendered", lambda _: sys.exit("enough"))
    ti = SimpleNamespace(map_index=-1, task=task)

    with pytest.raises(SystemExit):
        task.execute({"ti": ti, "params": {"api_token": "initial-token-123"}})

    assert "initial-token" not in str(redact("LAUNCH_PARAMETERS={'api_token': 'initial-token-123'}"))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("{}", "component 'mine_of_inputs.one' cannot be called: one() missing 1 required positional argument: 'x'"),
        ("{x: word}", "component 'mine_of_inputs.one' returned str; it must return an AppDef"),
    ],
)
def test_a_component_that_gives_no_app_is_refused(write, args, text):
    head = "from airflow_provider_launch.specs import AppDef\n"
    write(f"{head}def one(x: str) -> AppDef:\n    return x\n", "mine_of_inputs.py")
    step = f"{{type: task, command_type: app, component: mine_of_inputs.one, args: {args}, next: success}}"

    with pytest.raises(InvalidAppError) as caught:
        built(write(f"dag: {{start_at: one, steps: {{one: {step}}}}}\n"), {})

    assert str(caught.value) == text
