"""Invalid files: all problems are reported, each with its line, its step and a fix."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from airflow_provider_launch.pipelines import Pipeline, PipelineError, Stub, load, validate

CASES = {
    "unknown next": (
        "a: {type: stub, next: sucess}",
        {4: "'next' names 'sucess', which does not exist; did you mean 'success'?"},
    ),
    "unknown on_failure": (
        "a: {type: stub, next: success, on_failure: handel}\n    handle: {type: stub, next: success}",
        {4: "'on_failure' names 'handel', which does not exist; did you mean 'handle'?", 5: "no step leads here"},
    ),
    "an end with another name": (
        "a: {type: stub, next: success, on_failure: fail}\n    bad: {type: fail}",
        {4: "'on_failure' names 'fail', which does not exist; use 'bad', the step of type 'fail'"},
    ),
    "unreachable": (
        "a: {type: stub, next: success}\n    b: {type: stub, next: success}",
        {5: "no step leads here"},
    ),
    "ring": (
        "a: {type: stub, next: b}\n    b: {type: stub, next: a, on_failure: success}",
        {4: "steps form a cycle: a -> b -> a"},
    ),
    "itself": ("a: {type: stub, next: a, on_failure: success}", {4: "'next' names the step itself"}),
    "no way to a success": ("a: {type: stub, next: fail}", {1: "has no way to a success"}),
    "no next": ("a: {type: task, command: m.f}", {4: "has no 'next'"}),
    "no type": ("a: {next: success}", {4: "has no 'type'"}),
    "unknown type": ("a: {type: tsk, next: success}", {4: "'tsk' is not a valid type of step; did you mean 'task'?"}),
    "loop": ("a: {type: loop, next: success}", {4: "unroll it"}),
    "empty step": ("a: {}", {4: "step 'a': has no 'type'; use one of task, stub"}),
    "part of a step": (
        "a: {type: task, command: m.f, catalog: 5, next: success}",
        {4: "step 'a': 'catalog' must be a mapping, not 5"},
    ),
    "no mapping": ("a: 5", {4: "must be a mapping"}),
    "unknown field": (
        "a: {type: task, comand: m.f, command: m.f, next: success}",
        {4: "'comand' is not a field of a task; did you mean 'command'?"},
    ),
    "no command": ("a: {type: task, next: success}", {4: "has no 'command'"}),
    "command type": (
        "a: {type: task, command: m.f, command_type: bash, next: success}",
        {4: "'bash' is not a valid command_type"},
    ),
    "shell as python": ("a: {type: task, command: echo hi, next: success}", {4: "add 'command_type: shell'"}),
    "a secret in a list": (
        "a: {type: task, command: m.f, args: [--password, hush], next: success}",
        {4: "'args' must be a mapping, not ['--password', '***']"},
    ),
    "a secret in a setting": (
        "a: {type: task, command: m.f, executor: {type: local, config: {env: [DB_TOKEN=hush]}}, next: success}",
        {4: "'env' must be a mapping, not ['DB_TOKEN=***']"},
    ),
    "a secret in a command": (
        "a: {type: task, command: 'python train.py --token=hush --password hush', next: success}",
        {4: "'python train.py --token=*** --password ***' must be module.function, or add 'command_type: shell'"},
    ),
    "a secret in a name": (
        "a: {type: task, command: m.f, next: 'postgres://me:hush@host'}",
        {4: "'next' names 'postgres://me:***@host', which does not exist"},
    ),
    "a secret in the form of a variable": (
        "a: {type: task, command: m.f, args: [{name: PASSWORD, value: hush}], next: success}",
        {4: "'args' must be a mapping, not [{'name': 'PASSWORD', 'value': '***'}]"},
    ),
    "a secret in a mapping": (
        "a: {type: task, command: {token: hush, a: [{api_key: [hush]}]}, next: success}",
        {4: "'command' must be text, not {'token': '***', 'a': [{'api_key': '***'}]}"},
    ),
    "attempts": (
        "a: {type: task, command: m.f, max_attempts: 0, next: success}",
        {4: "whole number of at least 1, not 0"},
    ),
    "text that YAML reads as true": (
        "a: {type: task, command: m.f, returns: [on], next: success}",
        {4: "'returns' must be a list of names, or of mappings with 'name' and 'kind', not True; quote it"},
    ),
    "setting that YAML reads as a number": (
        "a: {type: task, command: m.f, executor: {type: local-container, config: {image: 3.10}}, next: success}",
        {4: "setting 'image' must be text, not 3.1; quote it"},
    ),
    "folder of a catalog": (
        "a: {type: task, command: m.f, catalog: {put: x, compute_data_folder: ../data}, next: success}",
        {4: "'compute_data_folder' '../data' leads outside"},
    ),
    "folder of all catalogs": (
        "a: {type: stub, next: success}\ncatalog: {config: {compute_data_folder: /data}}",
        {5: "'compute_data_folder' '/data' starts outside; it must stay inside the task's folder"},
    ),
    "both spellings": (
        "a: {type: task, command: m.f, max_attempts: 2, retry: 2, next: success}",
        {4: "means the same as 'max_attempts'"},
    ),
    "one task id": (
        "'step 1': {type: stub, next: step_1}\n    step_1: {type: stub, next: success}",
        {5: "becomes the task id 'step_1', like step 'step 1'; rename one"},
    ),
    "id of a gate": (
        "a: {type: stub, next: a__ok, on_failure: success}\n    a__ok: {type: stub, next: success}",
        {5: "becomes the task id 'a__ok'"},
    ),
    "object": (
        "a: {type: task, command_type: shell, command: x, returns: [{name: df, kind: object}], next: success}",
        {4: "'df' is an object, which only a function or a notebook can return"},
    ),
    "name of a variable": (
        """a: {type: task, command_type: shell, command: x, returns: ["x'y"], next: success}""",
        {4: "is not a valid name of a variable, which a shell command returns"},
    ),
    "kind of a value": (
        "a: {type: task, command: m.f, returns: [{name: df, kind: objekt}], next: success}",
        {4: "'objekt' is not a valid kind; did you mean 'object'?"},
    ),
    "name of an object": (
        "a: {type: task, command: m.f, returns: [{name: ../df, kind: object}], next: success}",
        {4: "'../df' is an object, whose name must be a Python name"},
    ),
    "object out of sight": (
        "a: {type: task, command: m.f, executor: {type: kubernetes, config: {image: i}}, returns: [{name: df, kind: object}], next: success}",
        {4: "set 'data_dir' to a folder that both see"},
    ),
    "folder of objects": (
        "a: {type: task, command: m.f, catalog: {put: .launch-objects/b/df.pickle}, next: success}",
        {4: "is the folder of objects"},
    ),
    "catalog leads outside": (
        "a: {type: task, command: m.f, catalog: {get: ['../x'], put: /etc/passwd}, next: success}",
        {4: "leads outside"},
    ),
    "type of a catalog": (
        "a: {type: stub, next: success}\ncatalog: {type: s3, config: {location: x}}",
        {5: "'s3' is not a valid type; use object-storage, with a URL as its location"},
    ),
    "config of a catalog": (
        "a: {type: stub, next: success}\ncatalog: {config: 5}",
        {5: "'config' must be a mapping, not 5"},
    ),
    "executor of a step": (
        "a: {type: task, command: m.f, executor: argo, next: success}",
        {4: "'argo' is not a valid executor; use 'kubernetes'"},
    ),
    "no image": (
        "a: {type: task, command: m.f, executor: kubernetes, next: success}",
        {4: "executor 'kubernetes' needs an 'image'"},
    ),
    "template of a setting that shapes the DAG": (
        "a: {type: task, command: m.f, executor: {type: local, config: {parallelism: '{{ x }}'}}, next: success}",
        {4: "setting 'parallelism' must be a whole number of at least 1, not '{{ x }}'"},
    ),
    "option of a scheduler": (
        "a: {type: task, command: m.f, executor: {type: local, config: {grace: 3}}, next: success}",
        {4: "'grace' is not a setting of executor 'local'; did you mean 'grace_s'?"},
    ),
    "kind of a setting": (
        "a: {type: task, command: m.f, executor: {type: local, config: {cpu: many}}, next: success}",
        {4: "setting 'cpu' must be a whole number of at least 1, not 'many'"},
    ),
    "number as the name of a setting": (
        "a: {type: task, command: m.f, overrides: {local: {1: 2}}, next: success}",
        {4: "'1' is not a setting of executor 'local'"},
    ),
    "number as the name of an option": (
        "a: {type: task, command: m.f, executor: {type: local, config: {cfg: {1: 2}}}, next: success}",
        {4: "'1' is not a setting of executor 'local'"},
    ),
    "placeholder": (
        "a: {type: task, command: m.f, overrides: {local: {env: }}, next: success}",
        {4: "leaves 'env' empty, but there is no placeholder of that name"},
    ),
    "profile": (
        "a: {type: task, command: m.f, overrides: {local: big}, next: success}",
        {4: "'overrides' names 'big', but executor 'local' has no such placeholder"},
    ),
    "catalog out of sight": (
        "a: {type: task, command: m.f, executor: {type: kubernetes, config: {image: i}}, catalog: {put: x}, next: success}",
        {4: "set 'data_dir' to a folder that both see, and 'data_volume' to its volume"},
    ),
    "catalog of a cluster": (
        "a: {type: task, command: m.f, executor: slurm, catalog: {put: x}, next: success}",
        {4: "does not see the files of the workers; set 'data_dir' to a folder that both see"},
    ),
    "mount": (
        "a: {type: task, command: m.f, executor: {type: local-container, config: {image: i, mounts: [/data]}}, next: success}",
        {4: "setting 'mounts' '/data' must have the form /host:/path or volume:/path, with :ro"},
    ),
    "mounts as one text": (
        "a: {type: task, command: m.f, executor: {type: local-container, config: {image: i, mounts: '/a:/b'}}, next: success}",
        {4: "setting 'mounts' must be a list of strings such as /host:/path or volume:/path:ro, not '/a:/b'"},
    ),
    "mount of a relative folder": (
        "a: {type: task, command: m.f, executor: {type: local-container, config: {image: i, mounts: ['./data:/data']}}, next: success}",
        {4: "has the relative folder './data'; give its absolute path, or the name of a volume"},
    ),
    "mount of a process": (
        "a: {type: task, command: m.f, executor: {type: local, config: {mounts: ['/data:/data']}}, next: success}",
        {4: "has 'mounts', but executor 'local' has no mounts"},
    ),
    "volume without a folder": (
        "a: {type: task, command: m.f, executor: {type: local-container, config: {image: i, data_volume: v}}, catalog: {put: x}, next: success}",
        {4: "set 'data_dir' to its mount path on the workers"},
    ),
    "volume of a cluster without any": (
        "a: {type: task, command: m.f, executor: {type: slurm, config: {data_dir: /d, data_volume: v}}, catalog: {put: x}, next: success}",
        {4: "executor 'slurm' has no volumes"},
    ),
    "map in map": (
        """outer:
      type: map
      iterate_on: xs
      iterate_as: x
      next: success
      branch:
        start_at: inner
        steps:
          inner:
            type: map
            iterate_on: ys
            iterate_as: y
            next: success
            branch: {start_at: a, steps: {a: {type: task, command: m.f, next: success}}}""",
        {4: "'iterate_on' names 'xs'", 12: "is a map inside of map 'outer'"},
    ),
    "list that no step returns": (
        """a: {type: task, command: m.f, returns: [chunks], next: m}
    m:
      type: map
      iterate_on: chunk
      iterate_as: x
      next: success
      branch: {start_at: a, steps: {a: {type: stub, next: success}}}""",
        {
            5: "'iterate_on' names 'chunk', which is neither a parameter nor returned by an earlier step; did you mean 'chunks'?"
        },
    ),
    "list without any parameter": (
        """a: {type: map, iterate_on: xs, iterate_as: x, next: success,
        branch: {start_at: b, steps: {b: {type: stub, next: success}}}}""",
        {4: "nor returned by an earlier step; add it to 'parameters', or to 'returns' of an earlier step"},
    ),
    "reducer": (
        """a: {type: map, iterate_on: [1], iterate_as: x, reducer: 'lambda x: max(x)', next: success,
        branch: {start_at: b, steps: {b: {type: stub, next: success}}}}""",
        {4: "'reducer' must be list, min, max, sum, last, or module.function (no lambda)"},
    ),
    "settings of a map": (
        """a: {type: map, iterate_on: [1], iterate_as: x, next: success, overrides: {local: {env: {A: b}}},
        branch: {start_at: b, steps: {b: {type: stub, next: success}}}}""",
        {4: "'overrides' has no effect on a map, which runs no app; move it to the steps of its 'branch'"},
    ),
    "no branches": ("a: {type: parallel, next: success, branches: {}}", {4: "has no branches"}),
    "included file": ("a: {type: dag, dag_definition: gone.yaml, next: success}", {4: "'gone.yaml' cannot be read"}),
    "unknown argument of Airflow": (
        "a: {type: task, command: m.f, airflow: {poool: x}, next: success}",
        {4: "is refused by Airflow: "},
    ),
    "wrong argument of Airflow": (
        "a: {type: task, command: m.f, airflow: {pool: 5}, next: success}",
        {4: "is refused by Airflow: 'pool' for task 'a' expects"},
    ),
    "wrong time of Airflow": (
        "a: {type: task, command: m.f, airflow: {execution_timeout: 1h}, next: success}",
        {4: "is refused by Airflow: "},
    ),
    "wrong date of Airflow": (
        "a: {type: task, command: m.f, airflow: {start_date: 2026-01-01x}, next: success}",
        {4: "is refused by Airflow: "},
    ),
    "argument of ours": (
        "a: {type: task, command: m.f, airflow: {retries: 2}, next: success}",
        {4: "'airflow' has 'retries', which is set by 'max_attempts'"},
    ),
    "ids of branches": (
        """a: {type: conditional, parameter: p, next: success, branches: {
        x: {start_at: b, steps: {b: {type: stub, next: success}}},
        x__case: {start_at: b, steps: {b: {type: stub, next: success}}}}}
parameters: {p: 1}""",
        {4: "becomes the id 'x__case', like"},
    ),
    "two defaults": (
        """a: {type: conditional, parameter: p, next: success, branches: {
        default: {start_at: b, steps: {b: {type: stub, next: success}}}},
        default: {start_at: b, steps: {b: {type: stub, next: success}}}}
parameters: {p: 1}""",
        {4: "is both a branch and the default"},
    ),
    "date": (
        "a: {type: task, command: m.f, next: success}\nparameters:\n  day: 2026-01-01",
        {6: "'day' is or contains a date, which Airflow cannot store as a parameter; quote it"},
    ),
    "binary": (
        "a: {type: task, command: m.f, next: success}\nparameters: {b: [1, {c: !!binary aGVsbG8=}]}",
        {5: "'b' is or contains bytes, which"},
    ),
    "shell that Jinja cannot read": (
        "a: {type: task, command_type: shell, command: 'echo ${#A}', next: success}",
        {4: "is not a valid template: Missing end of comment tag; add 'template: false' if it uses none"},
    ),
    "included itself": ("a: {type: dag, dag_definition: pipeline.yaml, next: success}", {4: "includes itself"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_problem_has_its_line_and_its_cure(write, name):
    steps, expected = CASES[name]
    path = write(f"dag:\n  start_at: {next(iter(steps.split(':'))).strip()}\n  steps:\n    {steps}\n")

    found = validate(path)

    assert {problem.line for problem in found} == set(expected)
    for line, text in expected.items():
        assert any(text in str(problem) for problem in found if problem.line == line), [*map(str, found)]


def test_a_problem_with_a_long_value_is_short(write):
    path = write(f"dag: {{start_at: a, steps: {{a: {{type: {'x' * 9000}, next: success}}}}}}\n")

    assert [len(problem.text) < 3000 for problem in validate(path)] == [True]


def test_a_problem_of_an_item_has_the_line_of_the_item(write):
    path = write("""
        dag:
          start_at: a
          steps:
            a:
              type: task
              command: m.f
              returns:
                - x
                - {name: y, kind: metrik}
              catalog:
                put:
                  - out/*
                  - ../secret
                  - 5
              next: success
        """)

    found = {problem.line: problem.text for problem in validate(path)}

    assert found == {
        9: "'returns' 'metrik' is not a valid kind; did you mean 'metric'?",
        13: "'put' '../secret' leads outside; it must stay inside the task's folder",
        14: "'put' must be a string or a list of strings, not 5; quote it",
    }


def test_many_wrong_items_give_few_problems(write):
    """Airflow stores and shows the text of an import error."""
    step = "{{type: task, command: m.f, catalog: {{put: [{}]}}, next: success}}"

    outside = validate(
        write(f"dag: {{start_at: a, steps: {{a: {step.format(', '.join(f'../{at}' for at in range(1000)))}}}}}\n")
    )
    numbers = validate(write(f"dag: {{start_at: a, steps: {{a: {step.format('5, ' * 1000)}}}}}\n"))

    assert (len(outside), len(numbers)) == (20, 1)
    assert len(str(numbers[0])) < 300


def test_all_problems_come_at_once_in_the_order_of_the_file(write):
    path = write("""
        executer: {type: local}
        parameters: [1]
        dag:
          start_at: fist
          steps:
            first: {type: stub, next: second}
            second: {type: task, command: m.f, retries: 2, next: thrid}
            third: {type: task, command: m.f, command_type: shel, next: success}
        """)

    found = validate(path)

    assert [problem.line for problem in found] == sorted(problem.line for problem in found)
    assert {1, 2, 3, 7, 8} <= {problem.line for problem in found}
    assert str(found[0]) == f"{path}:1: 'executer' is not a field of a pipeline; did you mean 'executor'?"
    with pytest.raises(PipelineError) as caught:
        load(path)
    assert len(caught.value.problems) == len(found)
    assert all(str(problem) in str(caught.value) for problem in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dag: [", "is not valid YAML"),
        (
            "dag: {start_at: a, steps: {a: {type: stub, next: success}, a: {type: stub, next: success}}}",
            "is given twice",
        ),
        ("steps: {}", "has no 'dag'"),
        ("dag:", "has no 'dag'"),
        ("", "has no 'dag'"),
        ("- a", "a pipeline is a mapping"),
        ("dag: &d {start_at: a, steps: {a: {type: dag, x: *d}}}", "refers to a part that contains it"),
        ("dag: {start_at: a, steps: {}}", "has no 'steps'"),
    ],
)
def test_a_file_that_is_no_pipeline(write, text, expected):
    assert any(expected in problem.text for problem in validate(write(text + "\n")))


ALIASES = "\n".join(
    [
        "x-0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]",
        *(f"x-{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 10)),
    ]
)
MERGES = "\n".join(
    ["x-0: &a0 {k: 1}", *(f"x-{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 9)}]}}" for at in range(1, 10))]
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ALIASES, "pipeline.yaml:1: has more than 100000 values, because each alias repeats"),
        (MERGES, "has more than 100000 values, because each alias repeats"),
        ("a: " + "[" * 20_000 + "]" * 20_000, "pipeline.yaml:1: is nested more than 100 levels deep; move inner parts"),
        ("a: " + "{b: " * 200 + "1" + "}" * 200, "pipeline.yaml:1: is nested more than 100 levels deep; move inner"),
        ("? " + "[" * 2_000_000, "is nested more than 100 levels deep"),
        ("? [a, b]\n: 1", "pipeline.yaml:1: a key must be text"),
        ("a: |\n  " + "x" * 5_000_000, "pipeline.yaml: has more than 4 MB; put large values into a file"),
        ("a: " + "1" * 5000, "pipeline.yaml:1: is a number of 5000 characters; quote it"),
        ("a: 1" + ":00" * 100_000, "is a number of 300001 characters; quote it"),
        ("a: 2001-99-99", "pipeline.yaml:1: '2001-99-99' is not a valid value: month must be in 1..12; quote it"),
        ("a: !!int x", "'x' is not a valid value"),
        ("a: !!binary é", "pipeline.yaml:1: is not valid YAML"),
        ("a: \0", "is not valid YAML"),
    ],
)
def test_a_file_that_would_keep_the_parser_busy_is_refused(write, text, expected):
    """Airflow parses each file every minute, together with those of other teams."""
    assert expected in "\n".join(map(str, validate(write(text + "\n"))))


def test_a_file_with_all_that_a_large_pipeline_needs_is_read(write):
    steps = "".join(f"    s{at}: {{<<: *common, next: s{at + 1}}}\n" for at in range(100))
    text = f"x-values: [{'1, ' * 50_000}]\nx-common: &common {{type: task, command: m.f}}\ndag:\n  start_at: s0\n  steps:\n{steps}"

    assert validate(write(f"{text}    s100: {{type: stub, next: success}}\n")) == []


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipeline.yaml")

    (problem,) = validate(tmp_path / "pipeline.yaml")

    assert "is not a regular file; put the pipeline into one" in str(problem)


def test_a_file_that_is_not_there(tmp_path):
    (problem,) = validate(tmp_path / "gone.yaml")

    assert "cannot be read: No such file" in str(problem)


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "pipeline.yaml").write_bytes(b"dag: \xff\n")

    assert [problem.text for problem in validate(tmp_path / "pipeline.yaml")] == [
        "cannot be read: it is not UTF-8 text"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dag: {start_at: a\nb: 1", r":2: is not valid YAML: (did not find )?expected ',' or '}'.*"),
        ("dag: \x01", r": is not valid YAML: unacceptable character #x0001: .*"),
    ],
    ids=["not closed", "control character"],
)
def test_an_error_of_yaml_has_its_reason_in_its_first_line(write, text, expected):
    (problem,) = validate(write(text + "\n"))

    assert re.fullmatch(expected, str(problem).partition("pipeline.yaml")[2].splitlines()[0])


def test_an_unexpected_error_of_airflow_is_a_problem_of_the_file(write):
    name = "x" * 300
    text = f"name: {name}\ndag: {{start_at: a, steps: {{a: {{type: stub, next: success}}}}}}\n"

    for problems in (validate(write(text)), Pipeline(name, steps=[Stub("a")]).validate()):
        assert [re.sub(r": \w+: ", ": ", one.text) for one in problems] == [
            "cannot become a DAG: The key has to be less than 250 characters, not 300"
        ]


def test_an_anchor_outside_of_the_dag_is_no_unknown_field(write):
    path = write("""
        branch: &branch
          start_at: a
          steps:
            a: {type: stub, next: success}
        dag:
          start_at: p
          steps:
            p: {type: parallel, next: success, branches: {x: *branch, y: *branch}}
        """)

    assert validate(path) == []
    assert load(path).graph.steps["p"].branches["y"].steps["a"].place.line == 4


def test_old_spellings_mean_the_same(write):
    path = write("""
        mode: {type: local-container, config: {docker_image: i, environment: {A: 1}, placeholders: {big: {cpu: 4}}}}
        run_log_store: {type: file-system}
        dag:
          start_at: a
          steps:
            a: {type: as-is, command_type: whatever, render_string: x, next: b}
            b: {type: task, command: m.f, retry: 3, mode_config: {local-container: big}, next: success}
            success: {type: success}
            fail: {type: fail}
        """)

    model = load(path)

    assert validate(path) == []
    assert model.graph.steps["b"].max_attempts == 3
    assert model.graph.steps["b"].overrides == {"local-container": "big"}


def test_names_of_any_language_are_ids(write):
    """All letters became `_`, so that two names of one length were refused."""
    from airflow_provider_launch.pipelines import dag_from_file

    text = "dag: {start_at: é, steps: {é: {type: stub, next: ü}, ü: {type: task, command_type: async-python, command: m.f, next: 終わり}, 終わり: {type: success}}}\n"
    path = write(text, "größe.yaml")

    assert validate(path) == []
    dag = dag_from_file(path)
    assert (dag.dag_id, {*dag.task_ids}) == ("größe", {"é", "ü", "終わり"})


def test_reading_a_file_does_not_import_airflow(write):
    path = write("dag: {start_at: a, steps: {a: {type: task, command: m.f, next: success}}}\n")
    code = f"""
import sys
from airflow_provider_launch.pipelines import load
assert load({str(path)!r}).name
assert not [name for name in sys.modules if name.partition('.')[0] in ('airflow', 'docker', 'kubernetes', 'boto3')]
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr


SUB = """
parameters: {q: 7}
dag: {start_at: one, steps: {one: {type: task, command_type: shell, command: 'echo $q', next: success}}}
"""
INCLUDING = "dag: {start_at: a, steps: {a: {type: dag, dag_definition: sub.yaml, next: success}}}\n"


def test_parameters_of_an_included_file_count(write):
    write(SUB, "sub.yaml")

    assert load(write(INCLUDING)).parameters == {"q": 7}
    assert load(write(INCLUDING + "parameters: {q: 8}\n")).parameters == {"q": 8}


def test_sections_of_an_included_file_that_would_be_ignored_are_refused(write):
    """Its steps would run on another executor than the one in the file."""
    path = write("executor: local-container\ncatalog: x\nbogus: 1\n" + SUB.lstrip(), "sub.yaml")

    found = validate(write(INCLUDING))

    assert [(problem.place.file, problem.line, problem.text.partition(";")[0]) for problem in found] == [
        (str(path), 1, "'executor' of an included file is not used"),
        (str(path), 2, "'catalog' of an included file is not used"),
        (str(path), 3, "'bogus' is not a field of a pipeline"),
    ]


OVER = """
dag:
  start_at: m
  steps:
    m: {type: map, iterate_on: chunks, iterate_as: x, next: success, branch: {
      start_at: one, steps: {one: {type: task, command_type: shell, command: "true", next: success}}}}
"""


def test_every_source_of_parameters_reaches_the_checks(write, monkeypatch):
    """The list of a map may come from any of them."""
    from airflow_provider_launch.pipelines import dag_from_file

    path = write(OVER)
    more = write("chunks: [1]\n", "more.yaml")
    assert [problem.line for problem in validate(path)] == [4]

    assert validate(path, params={"chunks": [1]}) == []
    assert validate(path, parameters_file=more) == []
    assert dict(dag_from_file(path, parameters_file=more).params) == {"chunks": [1]}
    assert dict(dag_from_file(path, parameters_file=more, params={"chunks": [2]}).params) == {"chunks": [2]}
    monkeypatch.setenv("RUNNABLE_PRM_chunks", "[3]")
    assert validate(path) == []
    assert dict(dag_from_file(path, parameters_file=more).params) == {"chunks": [3]}


@pytest.mark.parametrize(("text", "expected"), [("[1]", "must be a mapping"), ("a: [", "not valid YAML")])
def test_a_wrong_file_of_parameters_is_named(write, text, expected):
    more = write(text, "more.yaml")

    (problem, *_) = validate(write(OVER), parameters_file=more, params={"chunks": []})

    assert problem.place.file == str(more)
    assert expected in problem.text


def test_the_form_accepts_any_number_for_a_number(write):
    """The first value of a learning rate may be 1."""
    from airflow_provider_launch.pipelines import dag_from_file

    dag = dag_from_file(write("parameters: {lr: 1}\ndag: {start_at: a, steps: {a: {type: stub, next: success}}}\n"))

    dag.params["lr"] = 0.5
    with pytest.raises(Exception, match="not of type"):
        dag.params["lr"] = "much"


def test_a_command_may_be_no_template(write):
    step = "{type: task, command_type: shell, command: 'echo ${#A} {{ x }}', template: false, next: success}"

    model = load(write(f"dag: {{start_at: a, steps: {{a: {step}}}}}\n"))

    assert model.graph.steps["a"].command == "echo ${#A} {{ x }}"


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("demo-renderer", "local"),
        ("emulator", "local"),
        ("local-aws-batch", "aws-batch"),
        ("argo", "kubernetes"),
        ("kfp", "kubernetes"),
        ("k8s-job", "kubernetes"),
    ],
)
def test_an_executor_of_magnus_or_runnable_has_its_counterpart_in_the_message(write, name: str, here: str) -> None:
    path = write(f"""
        executor: {name}
        dag: {{start_at: a, steps: {{a: {{type: stub, next: success}}}}}}
        """)

    assert [problem.text for problem in validate(path)] == [f"{name!r} is not a valid executor; use {here!r}"]
