"""The worker opens files and URLs that the app of a step names, but not those named by earlier steps."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Param
from jinja2 import ChainableUndefined

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
    parameters: {own: FOLDER/secret.yaml, word: some, mark: ., none: '', own_name: here}
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

    def call(step: str, values: dict[str, Any], *, is_resumed: bool = False, **dag: Any) -> Any:
        name = f"parts_{abs(hash(step + str(values)))}"
        write(PARTS.replace("FOLDER", str(tmp_path)), f"{name}.py")
        text = FILE.replace("command_type: app, " if "command_type" in step else "", "")
        text = text.replace("STEP", step.replace("PARTS", name)).replace("FOLDER", str(tmp_path))
        task = dag_from_file(write(text), name, **dag).get_task("app")
        parameters = {"values": values, "orders": dict.fromkeys(values, 1)}
        ti = SimpleNamespace(
            dag_id="d", run_id="r", task_id="app", map_index=-1, try_number=1, id="x",
            xcom_pull=lambda **_: parameters, xcom_push=lambda *_, **__: None,
        )  # fmt: skip
        run = SimpleNamespace(conf={}, run_id="r", clear_number=0, start_date=None)
        context: Any = {"ti": ti, "params": values, "dag_run": run, "run_id": "r", "task": task, "dag": task.dag}
        context["task_state_store"] = Store()
        found = []

        def launched(_: object, app: AppDef, sources: Sources) -> Any:
            with guarded(lambda location: sources.check(location, location, "an overlay of the app")):
                found.append(get_overlay(app.roles[0], "docker", "Container"))
            return {"handle": "h", "result": None, "roles": {}, "state": "SUCCEEDED"}

        monkeypatch.setattr(_run.OperatorRun, "run", launched)
        task.render_template_fields(context)
        task.resume(context, {}) if is_resumed else task.execute(context)
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
        (GIVEN.replace("PATCH", "'{{ params.path }}', x: [FOLDER/theirs, other.yaml]"), "{folder}/theirs/other.yaml"),
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
        ("{config_dir: $path, config_name: c, overrides: ['']}", {"path": ""}),
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


@pytest.mark.parametrize("text", [".", "$mark"])
def test_the_directory_of_a_config_may_be_a_mark(opened, tmp_path, monkeypatch, text: str) -> None:
    (tmp_path / "c.yaml").write_text(HYDRA)
    monkeypatch.chdir(tmp_path)

    assert not opened(f"component: utils.hydra, args: {{config_dir: {text}, config_name: c}}", {"mark": "."})


def test_the_file_may_remove_an_option_of_the_connection(
    write, test_dag, tmp_path, monkeypatch, caplog, capsys
) -> None:
    extra = {"host": "tcp://127.0.0.1:9", "image_repo": "registry.example/x"}
    monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "launch_docker", "extra": extra}))
    (tmp_path / "src").mkdir()
    text = """
        executor: {type: local-container, config: {image: i, conn_id: place, image_repo: ''}}
        dag:
          start_at: a
          steps:
            a: {type: task, command_type: shell, command: "true", airflow: {workspace: FOLDER, unavailable_for_s: 0},
                next: success}
        """.replace("FOLDER", str(tmp_path / "src"))
    ran = test_dag(dag_from_file(write(text)))

    assert ran.states["a"] == "failed"
    assert "the Docker engine at tcp://127.0.0.1:9 does not answer" in f"{caplog.text}{capsys.readouterr()}"


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
@pytest.mark.parametrize("given", ["FOLDER/other", "other", ""], ids=["path", "part", "empty"])
def test_an_earlier_step_does_not_name_the_folder_of_the_code(opened, tmp_path, step: str, given: str) -> None:
    """The worker imports the component there, and copies files of the project from there into the app."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "theirs.py").write_text(THEIRS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "other" / "a.key").write_text("hush\n")
    text = OF_RUN if given.startswith("FOLDER") or not given else f"FOLDER/{OF_RUN}"

    with pytest.raises(Exception, match=r"setting 'code_dir' of the executor names .* is not written in the DAG file"):
        opened(step.replace("DIR", text), {"path": given.replace("FOLDER", str(tmp_path))})
    assert not (tmp_path / "imported").exists()


LOCAL = 'executor: {type: local, config: {code_dir: "DIR"}}, returns: []'
SHELL = f'command_type: shell, command: "true", {LOCAL}'
CONTAINER = (
    'command_type: shell, command: "true", executor: {type: local-container, config: {image: i, code_dir: "DIR"}}'
)
PARAM = "{{ params.path }}"


@pytest.fixture
def repository(tmp_path):
    """A repository whose configuration lets `git status` create the file `ran`."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.email=a@example.com", "-c", "user.name=a"]
    (folder / "a").write_text("1\n")
    for arguments in (["init", "-q"], ["add", "a"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *arguments], check=True)
    (folder / ".gitattributes").write_text("* filter=own\n")
    (folder / "a").write_text("2\n")
    subprocess.run([*git, "config", "filter.own.clean", f"touch {tmp_path}/ran; cat"], check=True)
    return folder


@pytest.mark.parametrize("text", [OF_RUN, PARAM, f"FOLDER/{PARAM}"], ids=["step", "form", "part"])
def test_the_worker_runs_no_git_in_a_folder_that_a_run_names(opened, tmp_path, repository, text: str, capsys) -> None:
    """In a container it is a path of the image."""
    given = "repository" if text.startswith("FOLDER") else str(repository)

    opened(CONTAINER.replace("DIR", text), {"path": given})

    assert not (tmp_path / "ran").exists()
    assert "the commit of the code is not recorded" in capsys.readouterr().out


@pytest.mark.parametrize("step", [SHELL, CONTAINER], ids=["local", "container"])
def test_the_commit_of_a_folder_that_the_file_names_is_recorded(opened, tmp_path, repository, step: str) -> None:
    opened(step.replace("DIR", str(repository)), {})

    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("text", [OF_RUN, PARAM], ids=["step", "form"])
@pytest.mark.parametrize(
    "command", [SHELL, f"command_type: python, command: theirs.make, {LOCAL}"], ids=["shell", "function"]
)
def test_a_local_step_does_not_start_in_a_folder_that_a_run_names(
    opened, tmp_path, repository, command: str, text: str
) -> None:
    """It would import modules from there."""
    with pytest.raises(Exception, match=r"setting 'code_dir' of the executor names .* is not written in the DAG file"):
        opened(command.replace("DIR", text), {"path": str(repository)})
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("step", [COMPONENT, PROJECT, SHELL], ids=["component", "project", "shell"])
def test_the_file_names_the_folder_of_the_code(opened, tmp_path, step: str) -> None:
    """Also as a string in a template."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "theirs.py").write_text(THEIRS.replace("FOLDER", str(tmp_path)))
    (tmp_path / "other" / "a.key").write_text("hush\n")

    opened(step.replace("DIR", "FOLDER/{{ 'other' }}"), {"path": "/elsewhere"})
    opened(step.replace("DIR", "FOLDER/other"), {"path": f"{tmp_path}/other"})


@pytest.mark.parametrize(
    "text",
    ["{{ params.none }}", "{{ params.get('sub', '') }}", "{{ 'a' if not params else '' }}", "{{ params.mark }}",
     "{{ '.' }}", "FOLDER/{{ params.none }}", "../{{ params.own_name }}", "{{ params.own }}/sub"],
)  # fmt: skip
def test_the_file_names_its_own_folder(opened, tmp_path, text: str) -> None:
    """As an empty text, as a mark, or as the folder above; also by initial values of parameters."""
    opened(SHELL.replace("DIR", text), {"none": "", "mark": ".", "own_name": "here", "own": f"{tmp_path}/secret.yaml"})


@pytest.mark.parametrize("value", ["", "/", "./", "//", ".", "..", "other", "other/..", "x"])
@pytest.mark.parametrize(
    "text",
    [f"FOLDER/{OF_RUN}", f"FOLDER/{OF_RUN}/src", f"{OF_RUN}/src", f"../{OF_RUN}", f"{OF_RUN}{{{{ params.word }}}}"],
)
def test_no_text_of_a_run_is_a_part_of_the_folder(opened, text: str, value: str) -> None:
    """It could lead to the folder above, or join words of the file to a path."""
    with pytest.raises(Exception, match="setting 'code_dir' of the executor names"):
        opened(SHELL.replace("DIR", text), {"path": value, "word": "/other"})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ params.path ~ '/' ~ params.none }}", ""),
        ("{{ [params.path, params.none] | join('/') }}", ""),
        ("{{ params.path ~ '/plugins' }}", ""),
        ("{{ params.path }}{{ '/plugins' }}", ""),
        ("{% if params.path %}{{ params.path }}{% endif %}/plugins", ""),
        ("{{ params.path.replace('..', '.') }}", "...."),
        ("{{ params.path | replace('../', '') }}", "....//"),
        ("/{{ params.path }}", ""),
        ("{{ params.path }}", "path"),
        ("{{ params.path }}", "own"),
    ],
)
@pytest.mark.parametrize("step", [COMPONENT, PROJECT, SHELL], ids=["component", "project", "shell"])
def test_what_cuts_or_joins_texts_is_no_folder(opened, step: str, text: str, value: str) -> None:
    with pytest.raises(Exception, match="setting 'code_dir' of the executor names"):
        opened(step.replace("DIR", text), {"path": value, "none": ""})


@pytest.mark.parametrize("kind", [str, Param])
@pytest.mark.parametrize("text", ["FOLDER/{{ params.place }}", "{{ params.whole }}"])
def test_parameters_of_the_dag_name_folders(opened, tmp_path, text: str, kind: Any) -> None:
    values = {"place": "other", "whole": f"{tmp_path}/other", "path": "/elsewhere"}
    given = {name: kind(values[name]) for name in ("place", "whole")}

    opened(SHELL.replace("DIR", text), values, params=given)
    with pytest.raises(Exception, match="setting 'code_dir' of the executor names"):
        opened(SHELL.replace("DIR", text), {**values, "place": "secret", "whole": f"{tmp_path}/secret"}, params=given)


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(("text", "place"), [("{{ params.place }}", "1.10"), ("FOLDER/{{ params.place }}", 3)])
def test_a_folder_is_a_text_also_in_a_native_dag(opened, text: str, place: Any, is_native: bool) -> None:
    given: Any = {"params": {"place": place}, "render_template_as_native_obj": is_native}

    opened(SHELL.replace("DIR", text), {"place": place, "path": ""}, **given)


@pytest.mark.parametrize("text", ["FOLDER/{{ params.missing }}/src", "{{ folder() }}", "{{ '/etc' | of_run }}"])
def test_what_a_dag_adds_to_templates_is_no_initial_value(opened, tmp_path, text: str) -> None:
    """A name that is missing, and a macro that asks Airflow for the run, give the text of each run."""
    given: Any = {
        "template_undefined": ChainableUndefined,
        "user_defined_macros": {"folder": lambda: str(tmp_path)},
        "user_defined_filters": {"of_run": lambda _: str(tmp_path)},
    }
    with pytest.raises(Exception, match="setting 'code_dir' of the executor names"):
        opened(SHELL.replace("DIR", text), {"missing": "", "path": ""}, **given)


@pytest.mark.parametrize("word", ["x", "y"])
@pytest.mark.parametrize(
    "text",
    [
        "{{ 'FOLDER/other' if params.word == 'x' else '' }}",
        "{% if params.word == 'x' %}FOLDER/other{% else %}FOLDER/theirs{% endif %}",
        "{% if params.word == 'x' %}FOLDER/other{% endif %}",
        "{{ params.get('gone') or 'FOLDER/other' }}",
        "{{ dag_run.conf['dir'] | default('FOLDER/other') }}",
        "FOLDER/{{ 'other' }}",
        OF_RUN,
    ],
)
def test_a_run_chooses_between_texts_of_the_file(opened, tmp_path, text: str, word: str) -> None:
    opened(SHELL.replace("DIR", text), {"word": word, "path": f"{tmp_path}/secret.yaml"})


DATA = "command_type: shell, command: 'true', returns: [], catalog: {put: ['*']}, executor: {type: local, config: {data_dir: \"DIR\"}}"


@pytest.mark.parametrize(
    "text",
    [OF_RUN, PARAM, f"/{PARAM}", f"FOLDER/a/{PARAM}", f"//{PARAM}", f"/data/../{PARAM}"],
    ids=["step", "form", "root", "part", "slashes", "up"],
)
@pytest.mark.parametrize("is_resumed", [False, True], ids=["started", "resumed"])
def test_a_run_does_not_name_the_folder_in_which_files_of_tasks_are(
    opened, tmp_path, text: str, is_resumed: bool
) -> None:
    given = "../elsewhere" if text.startswith("FOLDER") else f"{tmp_path}/elsewhere"

    with pytest.raises(Exception, match=r"setting 'data_dir' of the executor names .* is not written in the DAG file"):
        opened(DATA.replace("DIR", text), {"path": given}, is_resumed=is_resumed)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", ["FOLDER/data", "{{ 'FOLDER' }}/data", "FOLDER/{{ run_id }}", f"{OF_RUN}/deep"])
def test_the_file_or_the_configuration_names_the_folder_of_files(opened, tmp_path, monkeypatch, text: str) -> None:
    if text.startswith(OF_RUN):
        monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOWED_APP_SOURCES", str(tmp_path))

    with pytest.raises(Exception, match="no file of the task matches"):
        opened(DATA.replace("DIR", text), {"path": str(tmp_path), "word": "some"})


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


STEPS = {
    "shell": 'command_type: shell, command: "cat greeting", returns: []',
    "app": "command_type: app, app: {name: a, roles: [{name: r, image: /, entrypoint: cat, args: [greeting]}]}",
    "component": "command_type: app, component: parts_of_workspace.cat",
}


@pytest.mark.parametrize("step", STEPS)
def test_the_workspace_of_a_step_is_mirrored(write, test_dag, tmp_path, step: str) -> None:
    write(
        "from airflow_provider_launch.specs import AppDef, Role\n"
        "def cat() -> AppDef:\n    return AppDef('a', [Role('r', '/', entrypoint='cat', args=['greeting'])])\n",
        "parts_of_workspace.py",
    )
    write("hello\n", "src/greeting")
    text = """
        executor: local
        dag: {start_at: a, steps: {a: {type: task, STEP, airflow: {workspace: FOLDER/src}, next: success}}}
        """
    text = text.replace("FOLDER", str(tmp_path)).replace("STEP", STEPS[step])

    assert test_dag(dag_from_file(write(text), f"workspace_{step}")).states["a"] == "success"
