"""Names in a file as they are written: runnable reads YAML 1.2, in which `on` and `no` are text."""

from __future__ import annotations

import pytest

from airflow_provider_launch.pipelines import PipelineError, load, validate
from airflow_provider_launch.pipelines.desk import DeskRun, new_run

SH = "type: task, command_type: shell"


def at_desk(path, **given):
    """Run a pipeline at the desk; return its values, or the lines of a run that failed."""
    shown: list[str] = []
    model = load(path)
    values = DeskRun(model, new_run(model.name), shown.append).run(given)
    return shown if values is None else values


@pytest.mark.parametrize("quote", ["", "'"], ids=["plain", "quoted"])
@pytest.mark.parametrize("name", ["on", "off", "yes", "No", "TRUE", "null", "010", "1.10", "1_0", "2026-01-02", "0x1F"])
def test_a_step_may_have_any_name_without_quotes(write, name, quote):
    """YAML 1.1 reads them as true, 8, 1.1 or a date, and the steps of `next` and `on_failure` were not found."""
    target = "'null'" if name == "null" else f"{quote}{name}{quote}"
    path = write(f"""
        dag:
          start_at: {target}
          steps:
            {name}: {{{SH}, command: exit 1, next: success, on_failure: b}}
            b: {{{SH}, command: 'export seen=$LAUNCH_STEP', returns: [seen], next: c}}
            c: {{type: parallel, next: success, branches: {{{name}: {{start_at: {target}, steps: {{{name}: {{type: stub, next: success}}}}}}}}}}
        """)

    assert validate(path) == []
    model = load(path)
    assert (model.graph.start_at, [*model.graph.steps][:2]) == (name, [name, "b"])
    assert at_desk(path)["seen"] == "b"


def test_names_of_a_file_and_of_parameters_are_as_written(write):
    path = write(f"""
        name: on
        parameters: {{off: 1}}
        dag:
          start_at: a
          steps: {{a: {{{SH}, command: 'export yes=$((off + 1))', returns: ["yes"], next: success}}}}
        """)

    assert load(path).name == "on"
    assert at_desk(path) == {"off": 1, "yes": 2}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("yes", "yes"), ("off", "no"), ("'yes'", "yes"), ("true", "yes"), ("'false'", "default"), ("1", "default")],
)
def test_a_conditional_finds_the_branch_of_a_plain_yes(write, value, expected):
    """Airflow's form and functions give true and false; commands and quoted values give the words."""
    branches = ", ".join(
        f"{name}: {{start_at: a, steps: {{a: {{{SH}, command: export LAUNCH_PARAM_took={name}, next: success}}}}}}"
        for name in ("yes", "no")
    )
    path = write(f"""
        parameters: {{go: {value}}}
        dag:
          start_at: c
          steps:
            c: {{type: conditional, parameter: go, branches: {{{branches}}}, next: success,
                default: {{start_at: a, steps: {{a: {{{SH}, command: export LAUNCH_PARAM_took=default, next: success}}}}}}}}
        """)

    assert at_desk(path)["took"] == expected


def test_text_that_is_not_read_as_text_is_an_error_with_its_line_and_cure(write):
    path = write("""
        x-next: &next {next: on}
        dag:
          start_at: a
          steps:
            a: {<<: *next, type: stub}
            on: {type: stub, next: success}
        """)

    with pytest.raises(PipelineError) as caught:
        load(path)

    assert f"{path}:5: step 'a': 'next' must be text, not True; quote it" in str(caught.value)
