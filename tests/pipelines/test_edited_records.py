"""The record of an attempt in Airflow's task state store, which users who may edit a task instance can change."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.pipelines.attempt import Attempt
from airflow_provider_launch.pipelines.catalog import CatalogError
from airflow_provider_launch.pipelines.gates import Scope
from airflow_provider_launch.pipelines.model import Catalog, Return, TaskStep
from airflow_provider_launch.pipelines.records import KEY, MAX_ATTEMPTS, MAX_BYTES, appended

LAUNCHED = {"state": "intent", "attempt": 0, "app_id": "a", "spec_hash": "", "identity": "", "clear_number": 0}


class Store(dict[str, Any]):
    def set(self, key: str, value: Any, **_how: Any) -> None:
        self[key] = value


class Place:
    """Makes the attempts of one task with a catalog."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.store = Store()
        self.catalog = tmp_path / "catalog"
        (tmp_path / "base").mkdir(mode=0o700)
        model = SimpleNamespace(catalog=f"file://{self.catalog}", catalog_conn_id="", folder=tmp_path, project=())
        self.op = SimpleNamespace(
            step=TaskStep("t", catalog=Catalog(put=("*.py",))),
            model=model, scope=Scope(), log=logging.getLogger(__name__), retries=0, dag=SimpleNamespace(task_dict={}),
            render_template=lambda value, _context: value, get_flat_relative_ids=lambda **_how: set(),
        )  # fmt: skip
        self.place = SimpleNamespace(
            type="local", backend=None, sees_files=True, settings=SimpleNamespace(data_dir=str(tmp_path / "base"))
        )
        ti = SimpleNamespace(
            try_number=1, dag_id="d", run_id="r", task_id="t", map_index=-1, max_tries=-1, xcom_push=lambda *_: None
        )
        run = SimpleNamespace(start_date=None, clear_number=0)
        self.context: Any = {"ti": ti, "task_state_store": self.store, "dag_run": run}

    def start(self) -> Attempt:
        return Attempt.start(self.op, self.context, self.place)  # type: ignore[arg-type]

    def resume(self) -> Attempt:
        return Attempt.resume(self.op, self.context, self.place)  # type: ignore[arg-type]


@pytest.fixture
def task(tmp_path) -> Place:
    return Place(tmp_path)


def test_a_deferred_task_stores_the_files_of_its_folder_and_removes_it(task):
    folder = task.start().prepare_files()
    (folder / "model.py").write_text("one")
    attempt = task.resume()
    attempt.store_files()
    attempt.succeed({"handle": "h", "roles": {}, "state": "SUCCEEDED"}, {}, {})

    assert [path.read_text() for path in task.catalog.rglob("*.py")] == ["one"]
    assert not folder.exists()


@pytest.fixture(params=["folder", "parent", "neighbour", "link"])
def foreign(request, task) -> tuple[Path, str]:
    """A folder that is not of the task, and the path under which the record names it."""
    own = task.start().prepare_files()
    victim = task.tmp_path / "dags"
    victim.mkdir()
    name = {
        "folder": victim,
        "parent": own.parent / ".." / ".." / "dags",
        "neighbour": own.parent / "d-other-0123-0-aa",
        "link": own.parent / f"{own.name}-link",
    }[request.param]
    if request.param == "neighbour":
        name.mkdir()
        victim = name
    elif request.param == "link":
        name.symlink_to(victim)
    (victim / "dag.py").write_text("secret")
    return victim, str(name)


def test_a_foreign_folder_is_neither_stored_nor_removed(task, foreign):
    victim, name = foreign
    task.store[KEY][-1]["data_dir"] = name
    attempt = task.resume()
    with pytest.raises(CatalogError, match="no folder of this task"):
        attempt.store_files()
    attempt.fail(RuntimeError("as above"))

    assert (victim / "dag.py").read_text() == "secret"
    assert not [*task.catalog.rglob("*.py")]


def test_a_foreign_folder_is_not_given_to_the_next_app(task, foreign):
    """It would be mounted into a container."""
    victim, name = foreign
    task.store |= {"launch": {**LAUNCHED, "handle": "", "outcome": ""}}
    task.store[KEY][-1]["data_dir"] = name
    folder = task.start().prepare_files()

    assert Path(name).resolve() != folder.resolve() != victim


def test_the_folder_of_an_app_that_runs_on_is_used_again(task):
    first = task.start().prepare_files()
    task.store |= {"launch": {**LAUNCHED, "handle": "", "outcome": ""}}

    assert task.start().prepare_files() == first


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": [{"name": "a", "surprise": 1}]}, {"catalog": 5}, {"code": ["a"]}, {"code": [{"type": "git"}]},
        {"started": 5}, {"data_dir": ["a"]}, {"error": None}, {"parameters": []}, {"try_number": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_with_wrong_types_ends_no_task(task, change):
    task.start().prepare_files()
    task.store[KEY] = ["a", task.store[KEY][-1] | change]
    task.resume().succeed({"handle": "h", "roles": {}, "state": "SUCCEEDED"}, {}, {})

    assert task.store[KEY][-1]["state"] == "SUCCEEDED"


def test_the_folder_of_a_deferred_task_may_be_a_template(write, tmp_path, monkeypatch):
    """Its record would name a folder that is not below the template."""
    file = """
        executor: {type: local, config: {data_dir: "FOLDER/{{ run_id }}"}}
        dag: {start_at: a, steps: {a: {type: task, command_type: shell, command: "true", next: success}}}
        """
    task = dag_from_file(write(file.replace("FOLDER", str(tmp_path))), "d").get_task("a")
    context: Any = {"run_id": "r", "params": {}, "task": task, "dag": task.dag}
    places = []
    monkeypatch.setattr(Attempt, "resume", lambda _operator, _context, place: places.append(place))
    monkeypatch.setattr(task, "_finished", lambda *_: {})
    task.resume(context, {"handle": "h"})

    assert [place.settings.data_dir for place in places] == [f"{tmp_path}/r"]


def refuse(*_: object) -> None:
    raise ConnectionError("Airflow does not answer")


@pytest.mark.parametrize("fails", [False, True])
def test_a_record_that_airflow_does_not_take_ends_no_task(task, monkeypatch, caplog, fails):
    caplog.set_level(logging.INFO)
    attempt = task.start()
    monkeypatch.setattr(task.store, "set", refuse, raising=False)
    task.context["ti"].xcom_push = refuse
    if fails:
        attempt.fail(RuntimeError("of the program"))
    else:
        attempt.succeed({"handle": "h", "roles": {}, "state": "SUCCEEDED"}, {}, {})

    assert (attempt.record.state, attempt.record.error) == (
        ("FAILED", "of the program") if fails else ("SUCCEEDED", "")
    )
    assert f"attempt 1 on local {attempt.record.state}" in caplog.text


def test_files_of_a_failed_task_that_cannot_be_stored_are_a_line_of_its_log(task, caplog):
    """The error of the program is the one that counts."""
    folder = task.start().prepare_files()
    (folder / "model.py").symlink_to("../../../secret.py")
    (task.tmp_path / "secret.py").touch()
    attempt = task.resume()
    error = RuntimeError("of the program")
    error.status = SimpleNamespace(roles=(), state="FAILED")  # type: ignore[attr-defined]

    with pytest.raises(RuntimeError, match="of the program"), attempt.failing_ends():
        raise error

    assert (task.store[KEY][-1]["state"], task.store[KEY][-1]["error"]) == ("FAILED", "of the program")
    assert "files of the failed task could not be stored in the catalog: 'model.py' is a link that leads" in caplog.text
    assert not folder.exists()


def test_an_object_of_a_task_whose_folder_is_unknown_is_an_error(task):
    task.op.step = TaskStep("s", returns=(Return("model", "object"),))
    task.start().prepare_files()
    task.store[KEY][-1]["data_dir"] = "/elsewhere"
    with pytest.raises(CatalogError, match="no folder of this task"):
        task.resume().store_files()


# ---- the size of the records -----------------------------------------------------------------------------------------


def record(number: int, **fields: Any) -> dict[str, Any]:
    return {"started": str(number), "parameters": {}, "returned": {}, "catalog": [], **fields}


def size(records: object) -> int:
    return len(json.dumps(records))


def test_the_oldest_attempts_lose_their_values_and_are_then_dropped() -> None:
    """The store of Airflow has a limit, and the last attempt matters most."""
    stored: list[dict[str, Any]] = []
    for number in range(MAX_ATTEMPTS + 5):
        stored = appended(stored, record(number, parameters={"x": "x" * 2000}))
    assert [one["started"] for one in stored] == [str(number) for number in range(5, MAX_ATTEMPTS + 5)]
    assert stored[0]["parameters"] == {}
    assert stored[-1]["parameters"] == {"x": "x" * 2000}
    assert size(stored) <= MAX_BYTES

    stored = appended(stored, record(99, error="x" * (MAX_BYTES - 1000)))
    assert len(stored) > 1
    assert size(stored) <= MAX_BYTES
    assert stored[-1]["error"]


def test_the_last_attempt_is_kept_whatever_its_size() -> None:
    stored = appended([record(0)], record(1, error="x" * 2 * MAX_BYTES, parameters={"x": 1}))

    assert [(one["started"], one["parameters"]) for one in stored] == [("1", {})]
