"""One run of a DAG with one task, driven over the REST API as a user would."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Container
from typing import Any

from tests.live.airflow import Airflow
from tests.support.apps import until

ENDED = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})
# Each request costs Airflow some of the CPU that the scenarios share.
POLL_S = 1.0
_TASK = "app"
_SHOWN_LINES = 200
_numbers = itertools.count()


def texts_of(entry: dict[str, Any] | str) -> list[str]:
    """Return the text of a log entry, and those of the exceptions that came with it."""
    if isinstance(entry, str):
        return [entry]
    return [str(entry["event"]), *(str(error["exc_value"]) for error in entry.get("error_detail") or ())]


class Run:
    """A run that was just triggered.

    Args:
        airflow: where.
        dag_id: which DAG of `dags.py`.
        conf: actions of the app, and its engine.
    """

    def __init__(self, airflow: Airflow, dag_id: str, **conf: Any) -> None:
        self.airflow = airflow
        self.dag_id = dag_id
        # The name of its apps, too, and engines are shared.
        self.run_id = f"live{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        self._ask("PATCH", f"/dags/{dag_id}", {"is_paused": False})
        self._ask("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "dag_run_id": self.run_id, "conf": conf})

    @property
    def _path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def _ask(self, method: str, path: str, body: Any = None, **kwargs: Any) -> Any:
        answer = self.airflow.ask(method, path, body, **kwargs)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    # ---- what a user sees ------------------------------------------------------------------------------------

    def state(self) -> str:
        """Return the state of the run."""
        return self._ask("GET", self._path)["state"]

    def task(self, map_index: int | None = None) -> dict[str, Any]:
        """Return the task instance as the API tells it."""
        return self._ask("GET", self._instance(map_index))

    def tasks(self) -> list[dict[str, Any]]:
        """Return the task instances of the run that launch apps."""
        found: list[dict[str, Any]] = []
        while True:
            page = self._ask("GET", f"{self._path}/taskInstances", params={"limit": 100, "offset": len(found)})
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return [one for one in found if one["task_id"] == _TASK]

    def wait(self, states: Container[str], timeout_s: float = 90, *, try_number: int = 0) -> dict[str, Any]:
        """Return the task instance as soon as it is in one of the states, in this try or a later one."""
        deadline = time.monotonic() + timeout_s
        while True:
            task = self.task()
            if task["state"] in states and task["try_number"] >= try_number:
                return task
            assert time.monotonic() < deadline, (
                f"{self.dag_id} {self.run_id} is {task['state']} in try {task['try_number']}:\n"
                + "\n".join(self.log(task["try_number"])[-_SHOWN_LINES:])
            )
            time.sleep(POLL_S)

    def end(self, timeout_s: float = 90, *, try_number: int = 0) -> dict[str, Any]:
        """Return the task instance as soon as it has ended, and the run with it."""
        task = self.wait(ENDED, timeout_s, try_number=try_number)
        # A clear before the scheduler has noticed the end may be lost.
        until(lambda: self.state() in ENDED, timeout_s, POLL_S)
        return task

    def states_of_tries(self) -> list[str]:
        """Return how each try ended, or where the last one is."""
        tries = self._ask("GET", f"{self._instance()}/tries")["task_instances"]
        return [one["state"] for one in sorted(tries, key=lambda one: one["try_number"])]

    def xcom(self, key: str) -> Any:
        """Return the value; None if there is none."""
        answer = self.airflow.ask("GET", f"{self._instance()}/xcomEntries/{key}")
        if answer.status_code == 404:
            return None
        assert answer.is_success, answer.text
        value = answer.json()["value"]
        try:
            return json.loads(value)
        except (TypeError, ValueError):
            return value

    def log(self, try_number: int, map_index: int | None = None) -> list[str]:
        """Return the texts of the log of a try, as the log view shows them."""
        answer = self.airflow.ask(
            "GET",
            f"{self._instance()}/logs/{try_number}",
            params={"full_content": True, "map_index": -1 if map_index is None else map_index},
            headers={"accept": "application/json"},
        )
        if not answer.is_success:
            return [answer.text]
        content = answer.json()["content"]
        return [text for entry in content for text in texts_of(entry)]

    # ---- what a user does ------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Clear the task."""
        body = {"dry_run": False, "dag_run_id": self.run_id, "task_ids": [_TASK]}
        body |= {"only_failed": False, "reset_dag_runs": True}
        self._ask("POST", f"/dags/{self.dag_id}/clearTaskInstances", body)

    def mark(self, state: str) -> None:
        """Mark the task as failed or successful."""
        self._ask("PATCH", self._instance(), {"new_state": state})

    def mark_run(self, state: str) -> None:
        """Mark the run as failed or successful."""
        self._ask("PATCH", self._path, {"state": state})

    def delete(self) -> None:
        """Delete the run, which Airflow refuses as long as it runs."""
        deadline = time.monotonic() + 60
        while (answer := self.airflow.ask("DELETE", self._path)).status_code == 409:
            assert time.monotonic() < deadline, answer.text
            time.sleep(POLL_S)
        assert answer.status_code == 204, answer.text

    def _instance(self, map_index: int | None = None) -> str:
        path = f"{self._path}/taskInstances/{_TASK}"
        return path if map_index is None else f"{path}/{map_index}"
