"""Parameters, files and records passed from step to step."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from airflow_provider_launch.pipelines import dag_from_file, step_operator
from airflow_provider_launch.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount, Workspace
from airflow_provider_launch.specs.app_dict import app_from_dict, app_to_dict

FUNCTIONS = """
from __future__ import annotations
from dataclasses import dataclass
from pydantic import BaseModel


class Inner(BaseModel):
    x: int
    y: str


class Both(BaseModel):
    simple: int
    inner: Inner


def modify(simple: int, inner: Inner) -> Both:
    assert isinstance(inner, Inner)
    return Both(simple=simple + 1, inner=Inner(x=inner.x * 3, y=inner.y + "!!"))


def check(simple: int, inner: Inner, **rest):
    assert (simple, inner.x, inner.y) == (2, 30, "world!!"), (simple, inner)
    assert rest["other"] == 5


def generate():
    return list(range(0, 50, 10)), 10


def execute(chunk: int, stride: int):
    return {"total": chunk * stride}


async def add_up(total: list[int]):
    return sum(total)


def largest(values):
    return max(values)


def wrong():
    return object()
"""


def test_functions_get_and_give_typed_values(write, run_pipeline):
    write(FUNCTIONS, "functions.py")

    ran = run_pipeline("""
        parameters: {simple: 1, inner: {x: 10, y: world}, other: 5}
        dag:
          start_at: modify
          steps:
            modify: {type: task, command: functions.modify, next: check}
            check: {type: task, command: functions.check, next: success}
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("modify") == {"simple": 2, "inner": {"x": 30, "y": "world!!"}}
    assert ran.returned("check") == {}


def test_a_map_over_what_a_function_returns(write, run_pipeline):
    write(FUNCTIONS, "functions.py")

    ran = run_pipeline("""
        dag:
          start_at: chunk files
          steps:
            chunk files: {type: task, command: functions.generate, returns: [chunks, stride], next: iterate and execute}
            iterate and execute:
              type: map
              iterate_on: chunks
              iterate_as: chunk
              next: add up
              branch: {start_at: execute, steps: {execute: {type: task, command: functions.execute, next: success}}}
            add up: {type: task, command: functions.add_up, returns: [{name: all, kind: metric}], next: success}
        """)

    assert ran.state == "success", ran.states
    assert len([name for name in ran.states if name.startswith("iterate_and_execute.each.execute[")]) == 5
    assert ran.returned("iterate_and_execute.fan_in") == {"total": [0, 100, 200, 300, 400]}
    assert ran.returned("add_up") == {"all": 1000}
    assert ran.xcom("add_up", "attempt")["metrics"] == {"all": 1000}


def test_elements_may_be_equal_or_odd(write, run_pipeline):
    """An element is identified by its index, not by its text."""
    write("def same(x):\n    return x\n", "functions.py")
    items = ["a", "a", "x.y", "a b%c", "", 0, 1.5, True, {"k": [1]}]

    ran = run_pipeline(f"""
        parameters: {{xs: {json.dumps(items)}}}
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: xs
              iterate_as: x
              next: success
              branch: {{start_at: one, steps: {{one: {{type: task, command: functions.same, returns: [y], next: success}}}}}}
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("m.fan_in") == {"y": items}


def test_a_list_that_is_longer_than_airflow_maps_over_is_reported_with_the_setting(run_pipeline, monkeypatch, capfd):
    """Airflow's own message names no setting."""
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
    text = """
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: [{}]
              iterate_as: x
              next: success
              branch: {{start_at: a, steps: {{a: {{type: stub, next: success}}}}}}
        """

    assert run_pipeline(text.format("1, 2")).state == "success"
    assert "max_map_length" not in capfd.readouterr().out

    ran = run_pipeline(text.format("1, 2, 3"))

    assert (ran.state, ran.states["m.fan_out"]) == ("failed", "failed")
    shown = "".join(capfd.readouterr())
    assert "maps over at most 2 elements" in shown
    assert "raise [core] max_map_length of the API server" in shown


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        ("max", {"a": 30, "b": 3}),
        ("{a: sum, b: last}", {"a": 60, "b": 3}),
        ("{a: functions.largest}", {"a": 30, "b": [1, 2, 3]}),
    ],
)
def test_reducers(write, run_pipeline, monkeypatch, tmp_path, reducer, expected):
    write(FUNCTIONS, "functions.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    ran = run_pipeline(f"""
        parameters: {{xs: [1, 2, 3]}}
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: xs
              iterate_as: x
              reducer: {reducer}
              next: success
              branch:
                start_at: one
                steps:
                  one: {{type: task, command_type: shell, command: export a=$((x * 10)) b=$x, returns: [a, b], next: success}}
        """)

    assert ran.returned("m.fan_in") == expected


def test_values_of_branches_are_merged_in_the_order_of_the_file(run_pipeline):
    ran = run_pipeline("""
        parameters: {stale: 0}
        dag:
          start_at: first
          steps:
            first: {type: task, command_type: shell, command: export stale=1 own=first, returns: [stale, own], next: p}
            p:
              type: parallel
              next: last
              branches:
                a: {start_at: a, steps: {a: {type: task, command_type: shell, command: export shared=a stale=2, returns: [shared, stale], next: success}}}
                b: {start_at: b, steps: {b: {type: task, command_type: shell, command: export shared=b mine=b, returns: [shared, mine], next: success}}}
            last: {type: task, command_type: shell, command: 'test "$shared$stale$mine$own" = b2bfirst', next: success}
        """)

    assert ran.state == "success", ran.states
    assert ran.parameters("last") == {"stale": 2, "own": "first", "shared": "b", "mine": "b"}
    # A branch does not see the other one.
    assert "shared" not in (ran.parameters("p.b.b") or {}) or ran.parameters("p.b.b")["shared"] == "b"
    assert ran.parameters("p.b.b")["stale"] == 1


def test_elements_are_shown_by_their_values(run_pipeline):
    """The UI would number them."""
    ran = run_pipeline("""
        dag:
          start_at: m
          steps:
            m:
              type: map
              iterate_on: [left, 2]
              iterate_as: x
              next: success
              branch: {start_at: a, steps: {a: {type: task, command_type: shell, command: "true", next: success}}}
        """)

    shown = {ti.map_index: ti.rendered_map_index for ti in ran.run.get_task_instances() if ti.task_id == "m.each.a"}
    assert shown == {0: "left", 1: "2"}


@pytest.mark.parametrize(
    "command", ["trap true EXIT; export MAGNUS_PRM_x=1; exit 0", "export MAGNUS_PRM_x=1; exec true"]
)
def test_a_command_that_leaves_its_shell_is_reported(run_pipeline, capfd, command):
    """Its values were lost without a message."""
    text = "dag: {{start_at: s, steps: {{s: {{type: task, command_type: shell, command: '{}', next: success}}}}}}\n"

    assert run_pipeline(text.format("export MAGNUS_PRM_x=1")).parameters("s") == {"x": 1}
    assert "ended without returning variables" not in "".join(capfd.readouterr())
    assert run_pipeline(text.format(command)).parameters("s") == {}
    assert "the shell ended without returning variables" in "".join(capfd.readouterr())


def test_file_environment_form(run_pipeline, monkeypatch):
    monkeypatch.setenv("LAUNCH_PARAM_b", "20")
    monkeypatch.setenv("MAGNUS_PRM_c", "[30]")

    ran = run_pipeline(
        """
        parameters: {a: 1, b: 2, c: 3, d: 4}
        dag: {start_at: s, steps: {s: {type: task, command_type: shell, command: export e=1, returns: [e], next: success}}}
        """,
        conf={"d": 40},
    )

    assert ran.parameters("s") == {"a": 1, "b": 20, "c": [30], "d": 40, "e": 1}


RESERVED = {
    "module": {"__type": "json.tool.Gone", "__var": {}},
    "object": {"__classname__": "airflow.sdk.definitions.asset.Asset", "__version__": 0, "__data__": {"uri": "s3://x"}},
    "inside": [{"a": {"__type": "json.tool.Gone", "__var": {}}}],
}


@pytest.mark.parametrize("kind", RESERVED)
def test_a_value_of_a_run_makes_no_object_in_the_next_step(run_pipeline, monkeypatch, capfd, kind: str) -> None:
    """Airflow makes objects of stored values with such keys, and imports their modules."""
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    steps = {
        name: {"type": "task", "command_type": "shell", "command": f"echo ran-{name}", "next": after}
        for name, after in (("one", "two"), ("two", "success"))
    }
    ran = run_pipeline(
        yaml.safe_dump({"parameters": {"size": "small"}, "dag": {"start_at": "one", "steps": steps}}),
        {"other": RESERVED[kind]},
    )

    assert ran.state == "failed"
    assert "json.tool" not in sys.modules
    out, err = capfd.readouterr()
    assert "parameters of the run cannot be passed on: the result has the key '__" in out + err
    assert "ran-one" not in out + err


def test_a_failed_task_hands_on_nothing_but_what_was_known(run_pipeline):
    ran = run_pipeline("""
        dag:
          start_at: first
          steps:
            first: {type: task, command_type: shell, command: export x=1, returns: [x], next: bad}
            bad: {type: task, command_type: shell, command: export x=2 y=2; exit 1, returns: [x], next: success, on_failure: fix}
            fix: {type: task, command_type: shell, command: 'test "$x" = 1 && test -z "$y"', next: success}
        """)

    assert ran.state == "success", ran.states
    assert ran.parameters("fix") == {"x": 1}


CATALOG = """
    catalog: {catalog}
    dag:
      start_at: create
      steps:
        create:
          type: task
          command_type: shell
          command: |
            mkdir another; echo hello > hello.txt; echo world > another/world.txt; echo no > kept.log
          catalog: {{put: ["**/*.txt"]}}
          next: read
        read:
          type: task
          command_type: shell
          command: |
            test "$(cat hello.txt another/world.txt | tr '\\n' ' ')" = "hello world " && test ! -e kept.log
          catalog: {{get: "**/*"}}
          next: success
    """


def test_files_go_by_the_catalog(run_pipeline, tmp_path):
    ran = run_pipeline(CATALOG.format(catalog=tmp_path / "catalog"))

    assert ran.state == "success", ran.states
    (run_folder,) = (tmp_path / "catalog" / ran.dag.dag_id).iterdir()
    found = sorted(path.relative_to(run_folder).as_posix() for path in run_folder.rglob("*") if path.is_file())
    assert found == ["create/another/world.txt", "create/hello.txt"]
    put = ran.xcom("create", "attempt")["catalog"]
    assert [(item["name"], item["stage"], item["size"]) for item in put] == [
        ("another/world.txt", "put", 6),
        ("hello.txt", "put", 6),
    ]
    assert put[1]["sha256"] == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    # The folders of the tasks are gone.
    assert not Path(ran.xcom("create", "attempt")["data_dir"]).exists()


def test_a_file_that_is_not_there_is_a_failure_that_can_be_handled(run_pipeline):
    ran = run_pipeline("""
        dag:
          start_at: read
          steps:
            read: {type: task, command_type: shell, command: "true", catalog: {get: gone.csv}, next: success, on_failure: fix}
            fix: {type: task, command_type: shell, command: "true", next: success}
        """)

    assert ran.state == "success"
    assert ran.states["read"] == "failed"
    record = ran.xcom("read", "attempt")
    assert "no file of the catalog matches 'gone.csv'; no earlier task stored any" in record["error"]
    assert record["state"] == "FAILED"


def test_files_of_a_failed_task_are_kept_and_its_error_counts(run_pipeline):
    ran = run_pipeline("""
        dag:
          start_at: bad
          steps:
            bad:
              type: task
              command_type: shell
              command: echo 1 > df.csv; exit 3
              catalog: {put: [df.csv, gone.csv]}
              next: success
              on_failure: fix
            fix: {type: task, command_type: shell, command: cat df.csv, catalog: {get: df.csv}, next: success}
        """)

    assert ran.state == "success", ran.states
    record = ran.xcom("bad", "attempt")
    assert "exited with code 3" in record["error"]
    assert [item["name"] for item in record["catalog"]] == ["df.csv"]


def test_elements_of_a_map_have_files_of_their_own(run_pipeline):
    ran = run_pipeline("""
        parameters: {xs: [a, b]}
        dag:
          start_at: common
          steps:
            common: {type: task, command_type: shell, command: echo 1 > common.txt; echo 1 > out.txt, catalog: {put: "*"}, next: m}
            m:
              type: map
              iterate_on: xs
              iterate_as: x
              next: collect
              branch:
                start_at: make
                steps:
                  make: {type: task, command_type: shell, command: echo $x > out.txt, catalog: {get: common.txt, put: out.txt}, next: use}
                  use: {type: task, command_type: shell, command: 'test "$(cat out.txt)" = $x && test ! -e m', catalog: {get: "**/*"}, next: success}
            collect: {type: task, command_type: shell, command: 'test "$(cat m/0/out.txt m/1/out.txt)" = "$(echo a; echo b)"', catalog: {get: "m/*/out.txt"}, next: success}
        """)

    assert ran.state == "success", ran.states


def test_a_link_that_leads_outside_is_refused(run_pipeline):
    ran = run_pipeline("""
        dag:
          start_at: bad
          steps:
            bad: {type: task, command_type: shell, command: ln -s /etc/passwd out.txt, catalog: {put: "*"}, next: success}
        """)

    assert ran.state == "failed"
    assert "'out.txt' is a link that leads out of the task's folder" in ran.xcom("bad", "attempt")["error"]


def test_records_show_code_settings_and_values(run_pipeline, tmp_path, monkeypatch):
    import subprocess

    monkeypatch.setenv("AIRFLOW_VAR_API_TOKEN", "very-secret")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (
        ["init", "-q"],
        ["commit", "-q", "--allow-empty", "-m", "x"],
        ["remote", "add", "origin", "https://u:pw@example.org/r.git"],
    ):
        subprocess.run([*git, *arguments], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    ran = run_pipeline("""
        parameters: {x: 1, db_password: hunter2}
        executor: {type: local, config: {env: {A: one, MY_TOKEN: two}, grace_s: 3}}
        dag:
          start_at: s
          steps:
            s: {type: task, command_type: shell, command: 'test "$TOKEN" = very-secret; export y=2', secrets: {TOKEN: api_token}, returns: [y], next: success}
        """)

    record = ran.xcom("s", "attempt")
    code = {one["type"]: one for one in record["code"]}
    assert code["git"]["identifier"] == commit
    # pipeline.yaml itself is a new file.
    assert (code["git"]["dependable"], code["git"]["message"]) == (False, "changed: pipeline.yaml")
    assert code["git"]["url"] == "https://example.org/r.git"
    assert set(code) >= {"git", "app", "provider"}
    assert record["config"]["env"] == {"A": "one", "MY_TOKEN": "***"}
    assert record["config"]["grace_s"] == 3
    assert record["parameters"] == {"x": 1, "db_password": "***"}
    assert (record["returned"], record["state"], record["exit_codes"]) == ({"y": 2}, "SUCCEEDED", {"task": [0]})
    assert "very-secret" not in json.dumps(record)


def test_tracked_variables_are_metrics_of_the_record(write, run_pipeline):
    """`MAGNUS_TRACK_x`, `track_this` and `kind: metric`; only the last one is also a value."""
    write(
        """
        from magnus import track_this

        def fit():
            track_this(loss=0.5)
            track_this(step=2, loss=0.25)
            return 0.75
        """,
        "tracks_of_mine.py",
    )

    ran = run_pipeline("""
        dag:
          start_at: shell
          steps:
            shell: {type: task, command_type: shell, command: 'export MAGNUS_TRACK_rows=3 MAGNUS_TRACK_rows_STEP_4=5 x=1', returns: [x], next: function}
            function: {type: task, command: tracks_of_mine.fit, returns: [{name: accuracy, kind: metric}], next: success}
        """)

    assert ran.state == "success", ran.states
    assert ran.xcom("shell", "attempt")["metrics"] == {"rows": 3, "rows_STEP_4": 5}
    assert ran.xcom("function", "attempt")["metrics"] == {"loss": 0.5, "loss_STEP_2": 0.25, "accuracy": 0.75}
    assert ran.parameters("function") == {"x": 1, "accuracy": 0.75}


def test_lines_of_a_step_are_in_the_task_log(run_pipeline, capsys):
    ran = run_pipeline("""
        dag:
          start_at: a
          steps: {a: {type: task, command_type: shell, command: 'echo "the line $((40 + 2))"; echo "an error $((40 + 3))" >&2', next: success}}
        """)

    assert ran.state == "success", ran.states
    shown = capsys.readouterr().out
    assert "the line 42" in shown
    assert "an error 43" in shown


def test_an_app_and_a_component_are_launched_too(write, run_pipeline):
    write(
        '''
        from airflow_provider_launch.specs import AppDef, Role


        def twice(text: str, copies: int = 1) -> AppDef:
            """Write a text.

            Args:
                text: what
                copies: how often
            """
            script = 'echo "$0 $LAUNCH_STEP"; [ "$LAUNCH_REPLICA_ID" != 0 ] || echo "{\\\\"said\\\\": \\\\"$0\\\\"}" > $LAUNCH_RESULT_PATH'
            return AppDef("twice", [Role("r", "", entrypoint="sh", args=["-c", script, text], num_replicas=copies)])
        ''',
        "parts_of_mine.py",
    )

    ran = run_pipeline("""
        parameters: {who: world}
        dag:
          start_at: app
          steps:
            app:
              type: task
              command_type: app
              app: {name: a, roles: [{name: r, image: "", entrypoint: sh, args: ["-c", "echo '{\\"who\\": \\"{{ params.who }}\\"}' > $LAUNCH_RESULT_PATH"]}]}
              returns: [who]
              next: component
            component:
              type: task
              command_type: app
              component: parts_of_mine.twice
              args: {text: $who, copies: 2}
              returns: [said]
              next: success
        """)

    assert ran.state == "success", ran.states
    assert ran.returned("component") == {"said": "world"}
    assert ran.xcom("component", "return_value")["roles"] == {"r": [0, 0]}


def test_a_notebook_gets_and_gives_values(write, run_pipeline):
    nbformat = pytest.importorskip("nbformat")
    cells = [
        nbformat.v4.new_code_cell("x = 0", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("y = x + 1\nprint('y is', y)"),
        nbformat.v4.new_code_cell("{'z': y * 10}", metadata={"tags": ["out"]}),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    write(nbformat.writes(notebook), "book.ipynb")

    ran = run_pipeline("""
        parameters: {x: 4}
        dag:
          start_at: names
          steps:
            names: {type: task, command_type: notebook, command: book.ipynb, returns: [y], next: tag}
            tag: {type: task, command_type: notebook, command: book.ipynb, output_cell_tag: out, notebook_output_path: done.ipynb, catalog: {put: done.ipynb}, next: success}
        """)

    assert ran.state == "success", ran.states
    assert (ran.returned("names"), ran.returned("tag")) == ({"y": 5}, {"z": 50})
    assert [item["name"] for item in ran.xcom("tag", "attempt")["catalog"]] == ["done.ipynb"]


HOSTILE = {
    "BASH_ENV": "$(touch {made})",
    "GIT_SSH_COMMAND": "touch {made}",
    "NODE_OPTIONS": "--require={made}.js",
    "PERL5OPT": "-M{made}",
    "http_proxy": "http://127.0.0.1:1",
    "rows": 3,
}


def test_what_a_step_was_not_asked_for_is_no_variable_of_the_next(write, run_pipeline, tmp_path):
    """Otherwise a program could run code in the next step, which has other permissions, by a variable."""
    write("#!/bin/bash\necho report\n", "report.sh").chmod(0o755)
    made = tmp_path / "made"
    document = json.dumps({name: str(value).format(made=made) for name, value in HOSTILE.items()})
    write(document, "values.json")

    ran = run_pipeline(f"""
        executor: {{type: local, config: {{env: {{FOLDER: "{tmp_path}"}}}}}}
        dag:
          start_at: fit
          steps:
            fit: {{type: task, command_type: shell, command: cat $FOLDER/values.json > $LAUNCH_RESULT_PATH, next: report}}
            report:
              type: task
              command_type: shell
              command: |
                $FOLDER/report.sh
                env -0 > $FOLDER/env
                export own=$LAUNCH_PARAM_rows
              returns: [own]
              next: success
        """)

    assert ran.state == "success", ran.states
    assert not made.exists()
    names = {text.partition("=")[0] for text in (tmp_path / "env").read_text().split("\0")}
    assert names.isdisjoint(HOSTILE)
    assert {f"LAUNCH_PARAM_{name}" for name in HOSTILE} <= names
    assert ran.returned("report") == {"own": 3}


def test_declared_names_are_variables_unless_a_shell_acts_on_them(run_pipeline, tmp_path, capfd):
    """Declaring NODE_OPTIONS is intended; BASH_ENV is never a variable."""
    ran = run_pipeline(
        f"""
        parameters: {{ENV: prod, from_file: 1}}
        dag:
          start_at: fit
          steps:
            fit:
              type: task
              command_type: shell
              command: export NODE_OPTIONS=--trace BASH_ENV=x rows=3
              returns: [NODE_OPTIONS, BASH_ENV, rows]
              next: report
            report: {{type: task, command_type: shell, command: env -0 > {tmp_path}/env, next: success}}
        """,
        params={"from_dag": 2},
        conf={"from_form": 4},
    )

    assert ran.state == "success", ran.states
    lines = (tmp_path / "env").read_text().split("\0")
    assert {"NODE_OPTIONS=--trace", "rows=3", "from_file=1", "from_dag=2"} <= {*lines}
    assert {"LAUNCH_PARAM_BASH_ENV=x", "LAUNCH_PARAM_ENV=prod", "LAUNCH_PARAM_from_form=4"} <= {*lines}
    assert not [line for line in lines if line.startswith(("BASH_ENV=", "ENV=", "from_form="))]
    assert "because shells act on such names: ['ENV', 'BASH_ENV']" in "".join(capfd.readouterr())


@pytest.mark.parametrize("is_native", [False, True])
def test_settings_of_a_step_are_texts_also_in_a_native_dag(write, test_dag, tmp_path, is_native: bool) -> None:
    text = f"""
        executor: {{type: local, config: {{env: {{LR: "{{{{ params.version }}}}", N: "{{{{ params.n }}}}"}}}}}}
        parameters: {{version: "1.10", n: 2}}
        dag:
          start_at: one
          steps:
            one: {{type: task, command_type: shell, command: 'echo "$LR $N" > {tmp_path}/one', next: two}}
            two:
              type: task
              command_type: app
              app:
                name: a
                roles:
                - name: r
                  image: ""
                  entrypoint: sh
                  args: [-c, 'echo "$PASSED" > {tmp_path}/two']
                  env: {{PASSED: "{{{{ params.word }}}}"}}
              next: success
        """
    given = {"params": {"word": "$$x${app_id}"}, "render_template_as_native_obj": is_native}
    ran = test_dag(dag_from_file(write(text), "native", **given))

    assert ran.state == "success", ran.states
    assert (tmp_path / "one").read_text() == "1.10 2\n"
    assert (tmp_path / "two").read_text() == "$$x${app_id}\n"


def test_a_native_dag_gives_numbers_and_texts_of_an_app(write, test_dag, tmp_path) -> None:
    args = '[-c, "echo $V $0 $1 >> FOLDER/out", "{{ params.n }}", "{{ params.version }}"]'
    env = '{V: "{{ params.version }}"}'
    role = f'{{name: r, image: "", entrypoint: sh, args: {args}, env: {env}, num_replicas: "{{{{ params.n }}}}"}}'
    text = f"""
        executor: local
        parameters: {{n: 2, version: "1.10"}}
        dag:
          start_at: one
          steps:
            one: {{type: task, command_type: app, app: {{name: a, roles: [{role}]}}, next: success}}
        """.replace("FOLDER", str(tmp_path))
    ran = test_dag(dag_from_file(write(text), "numbers", render_template_as_native_obj=True))

    assert ran.state == "success", ran.states
    assert (tmp_path / "out").read_text() == 2 * "1.10 2 1.10\n"


CODE = """
from airflow_provider_launch.specs import AppDef, Role


def call(x: str, other, n: int):
    with open("FOLDER/call", "w") as file:
        print(x, other, n, sep="|", end="", file=file)


def app(x: str, n: int, folder: str) -> AppDef:
    args = ["-c", f"echo $0 >> {folder}/app", x]
    return AppDef("a", [Role("r", "/", entrypoint="sh", args=args, num_replicas=n)])
"""


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("text", ["1.10", "007", "1_000", "[1]", "None", "'q'", "$other", "$missing"])
def test_an_argument_is_the_text_that_its_template_gives(write, test_dag, tmp_path, text: str, is_native: bool) -> None:
    """Only the file names a parameter, as in `$other`."""
    write(CODE.replace("FOLDER", str(tmp_path)), "texts_of_steps.py")
    args = 'x: "{{ dag_run.conf.text }}", n: "{{ params.n }}"'
    file = write(f"""
        executor: local
        parameters: {{other: named, n: 2}}
        dag:
          start_at: shell
          steps:
            shell:
              type: task
              command_type: shell
              command: 'printf "%s|%s|%s" "$x" "$y" "$n" > {tmp_path}/shell'
              args: {{{args}, y: $other}}
              returns: []
              next: call
            call: {{type: task, command: texts_of_steps.call, args: {{{args}}}, returns: [], next: app}}
            app:
              type: task
              command_type: app
              component: texts_of_steps.app
              args: {{{args}, folder: {tmp_path}}}
              next: success
        """)
    ran = test_dag(dag_from_file(file, "texts", render_template_as_native_obj=is_native), run_conf={"text": text})

    assert ran.state == "success", ran.states
    assert (tmp_path / "shell").read_text() == f"{text}|named|2"
    assert (tmp_path / "call").read_text() == f"{text}|named|2"
    assert (tmp_path / "app").read_text() == 2 * f"{text}\n"


def test_an_argument_in_a_native_dag_keeps_the_type_of_its_expression(write, test_dag, tmp_path) -> None:
    write(f"def call(x):\n    open('{tmp_path}/call', 'w').write(repr(x))\n", "types_of_steps.py")
    file = write("""
        executor: local
        dag:
          start_at: call
          steps:
            call: {type: task, command: types_of_steps.call, args: {x: "{{ dag_run.conf.x }}"}, returns: [], next: success}
        """)
    for value in ([1, "2"], 3, {"a": True}):
        ran = test_dag(dag_from_file(file, "types", render_template_as_native_obj=True), run_conf={"x": value})

        assert ran.state == "success", ran.states
        assert (tmp_path / "call").read_text() == repr(value)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ('mounts: [{type: volume, src: "{{ params.text }}", dst_path: /x}]', lambda role: role.mounts[0].src),
        ('mounts: [{type: bind, src_path: "{{ params.text }}", dst_path: /x}]', lambda role: role.mounts[0].src_path),
        ('workspace: {projects: {/src: "{{ params.text }}"}}', lambda role: role.workspace.projects["/src"]),
        (
            'resource: {cpu: 1, gpu: 0, memMB: 9, capabilities: {node: "{{ params.text }}"}}',
            lambda role: role.resource.capabilities["node"],
        ),
    ],
)
@pytest.mark.parametrize("text", ["1.10", "2024", "[1]", "None"])
def test_texts_in_parts_of_an_app_stay_texts_in_a_native_dag(write, field: str, expected: Any, text: str) -> None:
    role = f'{{name: r, image: i, {field}, num_replicas: "{{{{ params.n }}}}"}}'
    file = write(f"""
        executor: {{type: local-container, config: {{image: i}}}}
        dag:
          start_at: one
          steps:
            one: {{type: task, command_type: app, app: {{name: a, roles: [{role}]}}, next: success}}
        """)
    made = rendered_app(file, {"text": text, "n": 2}).roles[0]

    assert (expected(made), made.num_replicas) == (text, 2)


def test_numbers_in_parts_of_an_app_are_numbers_in_a_native_dag(write) -> None:
    fields = """
        num_replicas: "{{ params.n }}"
        max_retries: "{{ params.n }}"
        resource: {cpu: "{{ params.n }}", gpu: "{{ params.n }}", memMB: "{{ params.n }}00"}
        port_map: {http: "{{ params.n }}"}
        mounts: [{type: bind, src_path: /s, dst_path: /d, read_only: "{{ params.n == 2 }}"}]
        args: "{{ params.words }}"
    """
    role = {"name": "r", "image": "i", **yaml.safe_load(textwrap.dedent(fields))}
    step = {"type": "task", "command_type": "app", "app": {"name": "a", "roles": [role]}, "next": "success"}
    file = write(json.dumps({"executor": "local", "dag": {"start_at": "one", "steps": {"one": step}}}))
    made = rendered_app(file, {"n": 2, "words": ["a", "1.10"]}).roles[0]

    assert (made.num_replicas, made.max_retries, made.port_map, made.args) == (2, 2, {"http": 2}, ["a", "1.10"])
    assert (made.resource.cpu, made.resource.gpu, made.resource.memMB) == (2, 2, 200)
    assert made.mounts[0].read_only is True


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("workspace", "{{ params.x }}", {"projects": {"/src": "1.10"}}),
        ("workspace", {"projects": "{{ params.x }}"}, {"/src": "1.10"}),
        ("mounts", ["{{ params.x }}"], {"type": "bind", "src_path": "/s", "dst_path": "1.10"}),
        ("mounts", "{{ params.x }}", [{"type": "bind", "src_path": "/s", "dst_path": "1.10"}]),
        ("env", "{{ params.x }}", {"V": "1.10"}),
        ("resource", "{{ params.x }}", {"cpu": 1, "gpu": 0, "memMB": 9}),
    ],
)
def test_a_template_gives_a_whole_part_of_an_app_in_a_native_dag(write, field: str, value: Any, expected: Any) -> None:
    role = {"name": "r", "image": "i", field: value}
    step = {"type": "task", "command_type": "app", "app": {"name": "a", "roles": [role]}, "next": "success"}
    file = write(json.dumps({"executor": "local", "dag": {"start_at": "one", "steps": {"one": step}}}))
    made = rendered_app(file, {"x": expected})

    assert json.dumps(expected).strip("[{}]") in json.dumps(app_to_dict(made)["roles"][0])


def test_a_class_as_a_function_has_the_annotations_of_its_bases(write, run_pipeline) -> None:
    write(
        """
        from dataclasses import dataclass


        @dataclass
        class Base:
            rows: int


        @dataclass
        class Config(Base):
            name: str = "x"
        """,
        "classes_of_steps.py",
    )
    ran = run_pipeline("""
        parameters: {rows: "5"}
        dag:
          start_at: one
          steps:
            one: {type: task, command: classes_of_steps.Config, returns: [rows], next: success}
        """)

    assert ran.returned("one") == {"rows": {"rows": 5, "name": "x"}}


RESOLVED = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from pathlib import Path
    from airflow_provider_launch.specs import AppDef


def app(dry: bool, n: int, folder: str, path: Path | None = None) -> AppDef:
    from airflow_provider_launch.specs import AppDef, Role

    return AppDef("a", [Role("r", "/", entrypoint="sh", args=["-c", f"echo '{dry!r} {n!r}' > {folder}/app"])])


def call(dry: bool, n: int, folder: str, path: Path | None = None) -> None:
    with open(f"{folder}/call", "w") as file:
        print(repr(dry), repr(n), file=file)
"""


@pytest.mark.parametrize("is_native", [False, True])
def test_one_annotation_for_type_checkers_does_not_hide_the_others(write, test_dag, tmp_path, is_native: bool) -> None:
    write(RESOLVED, "resolved_in_part.py")
    args = f'{{dry: "{{{{ dag_run.conf.dry }}}}", n: "{{{{ dag_run.conf.n }}}}", folder: {tmp_path}}}'
    file = write(f"""
        executor: local
        dag:
          start_at: call
          steps:
            call: {{type: task, command: resolved_in_part.call, args: {args}, returns: [], next: app}}
            app: {{type: task, command_type: app, component: resolved_in_part.app, args: {args}, next: success}}
        """)
    dag = dag_from_file(file, "resolved", render_template_as_native_obj=is_native)
    ran = test_dag(dag, run_conf={"dry": "False", "n": "2"})

    assert ran.state == "success", ran.states
    assert {(tmp_path / name).read_text() for name in ("call", "app")} == {"False 2\n"}


def rendered_app(file: Path, params: dict[str, Any]) -> AppDef:
    """Return the app of step `one`, of which the worker of a native DAG has rendered the templates."""
    task = dag_from_file(file, params=params, render_template_as_native_obj=True).get_task("one")
    run = SimpleNamespace(conf={}, run_id="r")
    context = {"params": params, "dag_run": run, "task": task, "dag": task.dag}
    task.render_template_fields(context)
    return app_from_dict(task._rendered(context)[0].app)


def test_each_field_of_an_app_has_a_kind() -> None:
    """A field that is neither a text nor known here would be a text in a native DAG."""
    texts = {"name", "image", "entrypoint", "retry_policy", "src", "src_path", "dst_path", "permissions"}
    kinds = (AppDef, Role, Resource, BindMount, VolumeMount, DeviceMount, Workspace)
    fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}

    assert fields - texts == step_operator._NUMBERS | step_operator._WHOLE
