"""The link on the page of a task to the records of its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = ["AttemptsLink"]


class AttemptsLink(BaseOperatorLink):
    """The XComs of the task, of which `attempt` says where it ran, from which code, and how it ended."""

    name = "Attempt"

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server looks for the URL."""
        return "launch_link_attempt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - as Airflow calls it
        """Return the page of the XComs of this task instance."""
        base = conf.get("api", "base_url", fallback="") or "http://localhost:8080/"
        index = ti_key.map_index
        mapped = "" if index in (None, -1) else f"/mapped/{index}"
        dag, run, task = (quote(text, safe="") for text in (ti_key.dag_id, ti_key.run_id, ti_key.task_id))
        return f"{base.rstrip('/')}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/xcom"
