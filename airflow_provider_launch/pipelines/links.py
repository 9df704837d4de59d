"""The link on the page of a task to the records of its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_launch.links.launch import task_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class AttemptsLink(BaseOperatorLink):
    """The XComs of the task, of which `attempt` states where it ran, from which code, and how it ended."""

    name = "Attempt"

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server finds the URL."""
        return "launch_link_attempt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - as Airflow calls it
        """Return the page of the XComs of this task instance."""
        return f"{task_page(ti_key)}/xcom"
