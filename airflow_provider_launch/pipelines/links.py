"""The link from the page of a task to the records of its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperatorLink

from airflow_provider_launch.links.launch import task_page

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class AttemptsLink(BaseOperatorLink):
    """Links to the XComs of the task; `attempt` records where it ran, its code and its end."""

    name = "Attempt"

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server finds the URL."""
        return "launch_link_attempt"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - signature of Airflow
        """Return the page of the XComs of this task instance."""
        return f"{task_page(ti_key)}/xcom"
