"""The worker opens files and URLs that the app of a step names, but not those named by earlier steps."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.operators import _run
from airflow_provider_launch.operators._sources import Sources
from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.specs import AppDef, InvalidAppError
from airflow_provider_launch.specs.overlays import get_overlay, guarded

PARTS = """
from airflow_provider_launch.specs import AppDef, Role

def patched(patch: str = "", folder: str = "") -> AppDef:
    path = patch or (folder and folder + "/other.yaml") or "FOLDER/secret.yaml"
    return AppDef("a", [Role("r", "i", entrypoint="x", metadata={"docker": path})])
"""
FILE = """
    executor: {type: local-container, config: {image: i, conn_id: place}}
    parameters: {own: FOLDER/secret.yaml, word: some}
    dag:
      start_at: earlier
      steps:
        earlier: {type: task, command_type: shell, command: "true", next: app}
        app: {type: task, command_type: app, STEP, next: success}
    """
GIVEN = "app: {name: a, roles: [{name: r, image: i, entrypoint: x, metadata: {docker: PATCH}}]}"


class Store(dict[str, Any]):
    def set(self, key: str, value: Any, **_how: Any) -> None:
        self[key] = value


@pytest.fixture
def opened(write, tmp_path, monkeypatch):
    """Return the overlay that a step would read, given the values of an earlier step."""
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": {}}))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "secret.yaml").write_text("Container: {x: 1}\n")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "other.yaml").write_text("Container: {x: 2}\n")

    def call(step: str, values: dict[str, Any]) -> Any:
        name = f"parts_{abs(hash(step + str(values)))}"
        write(PARTS.replace("FOLDER", str(tmp_path)), f"{name}.py")
        text = FILE.replace("STEP", step.replace("PARTS", name)).replace("FOLDER", str(tmp_path))
        task = dag_from_file(write(text), name).get_task("app")
        parameters = {"values": values, "orders": dict.fromkeys(values, 1)}
        ti = SimpleNamespace(
            dag_id="d", run_id="r", task_id="app", map_index=-1, try_number=1, id="x",
            xcom_pull=lambda **_: parameters, xcom_push=lambda *_, **__: None,
        )  # fmt: skip
        run = SimpleNamespace(conf={}, run_id="r", clear_number=0, start_date=None)
        context: Any = {"ti": ti, "params": {}, "dag_run": run, "run_id": "r", "task": task, "dag": task.dag}
        context["task_state_store"] = Store()
        found = []

        def launched(_: object, app: AppDef, sources: Sources) -> Any:
            with guarded(lambda location: sources.check(location, location, "an overlay of the app")):
                found.append(get_overlay(app.roles[0], "docker", "Container"))
            return {"handle": "h", "result": None, "roles": {}, "state": "SUCCEEDED"}

        monkeypatch.setattr(_run.OperatorRun, "run", launched)
        task.render_template_fields(context)
        task.execute(context)
        return found[0]

    return call


@pytest.mark.parametrize(
    ("step", "given"),
    [
        ("component: PARTS.patched, args: {patch: $path}", "{folder}/theirs/other.yaml"),
        ("component: PARTS.patched, args: {patch: $path}", "file://{folder}/theirs/other.yaml"),
        ("component: PARTS.patched, args: {folder: $path}", "{folder}/theirs"),
        (GIVEN.replace("PATCH", "\"{{ ti.xcom_pull()['values']['path'] }}\""), "{folder}/theirs/other.yaml"),
        (GIVEN.replace("PATCH", "\"{{ ti.xcom_pull()['values']['path'] }}/other.yaml\""), "{folder}/theirs"),
    ],
)
def test_what_an_earlier_step_names_is_not_opened(opened, tmp_path, step: str, given: str) -> None:
    with pytest.raises(Exception, match="is not written in the DAG file") as raised:
        opened(step, {"path": given.format(folder=tmp_path)})
    assert isinstance(raised.value, InvalidAppError) or "allowed_app_sources" in str(raised.value)


HYDRA = """
app:
  _target_: airflow_provider_launch.specs.AppDef
  name: a
  roles: [{_target_: airflow_provider_launch.specs.Role, name: r, image: i, entrypoint: x}]
"""


@pytest.mark.parametrize(
    ("args", "values"),
    [
        ("{config_dir: $path, config_name: c}", {"path": "FOLDER/other"}),
        ("{config_dir: FOLDER, config_name: $path}", {"path": "d"}),
        ("{config_dir: \"{{ ti.xcom_pull()['values']['path'] }}\", config_name: c}", {"path": "FOLDER/other"}),
    ],
)
def test_the_worker_reads_no_config_of_hydra_that_an_earlier_step_names(opened, tmp_path, args, values) -> None:
    """It calls the functions in the config."""
    (tmp_path / "other").mkdir()
    for path in ("other/c.yaml", "d.yaml"):
        (tmp_path / path).write_text(f"app: {{_target_: builtins.open, _args_: [{tmp_path}/opened, w]}}\n")
    given = {name: text.replace("FOLDER", str(tmp_path)) for name, text in values.items()}

    with pytest.raises(Exception, match=r"argument config_(dir|name) of component 'utils.hydra' names"):
        opened(f"component: utils.hydra, args: {args}", given)
    assert not (tmp_path / "opened").exists()


def test_a_config_of_hydra_that_the_file_names_is_read(opened, tmp_path) -> None:
    (tmp_path / "c.yaml").write_text(HYDRA)

    assert not opened("component: utils.hydra, args: {config_dir: FOLDER, config_name: c}", {})


OF_RUN = "{{ ti.xcom_pull()['values']['path'] }}"
COMPONENT = 'component: theirs.make, executor: {type: local, config: {code_dir: "DIR"}}'
PROJECT = (
    "app: {name: a, roles: [{name: r, image: /, entrypoint: x}]}, catalog: {project: ['*.key']}, "
    'executor: {type: local, config: {code_dir: "DIR", data_dir: FOLDER/data}}'
)
THEIRS = """
from airflow_provider_launch.specs import AppDef, Role

def make() -> AppDef:
    return AppDef("a", [Role("r", "/", entrypoint="x")])

open("FOLDER/imported", "w").close()
"""


@pytest.mark.parametrize("step", [COMPONENT, PROJECT], ids=["component", "project"])
@pytest.mark.parametrize("given", ["FOLDER/other", "other"], ids=["path", "part"])
def test_an_earlier_step_does_not_name_the_folder_of_the_code(opened, tmp_path, step: str, given: str) -> None:
    """The worker imports the component there, and copies files of the project from there into the app."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "theirs.py").write_text(THEIRS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "other" / "a.key").write_text("hush\n")
    text = OF_RUN if given.startswith("FOLDER") else f"FOLDER/{OF_RUN}"

    with pytest.raises(Exception, match=r"setting 'code_dir' of the executor names .* is not written in the DAG file"):
        opened(step.replace("DIR", text), {"path": given.replace("FOLDER", str(tmp_path))})
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("step", [COMPONENT, PROJECT], ids=["component", "project"])
def test_the_file_names_the_folder_of_the_code(opened, tmp_path, step: str) -> None:
    """Also as a string in a template."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "theirs.py").write_text(THEIRS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "other" / "a.key").write_text("hush\n")

    opened(step.replace("DIR", "FOLDER/{{ 'other' }}"), {"path": "/elsewhere"})
    opened(step.replace("DIR", "FOLDER/other"), {"path": f"{tmp_path}/other"})


@pytest.mark.parametrize(
    "step",
    [
        "component: PARTS.patched",
        "component: PARTS.patched, args: {patch: $own}",
        "component: PARTS.patched, args: {patch: FOLDER/secret.yaml}",
        GIVEN.replace("PATCH", "FOLDER/secret.yaml"),
    ],
)
def test_what_the_author_names_is_opened(opened, tmp_path, step: str) -> None:
    assert opened(step, {"path": "/elsewhere", "own": f"{tmp_path}/secret.yaml", "n": 5}) == {"x": 1}
