"""Links on the page of a task: to the app in its scheduler's user interface, and to the request."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_provider_launch._airflow import conf, set_xcom
from airflow_provider_launch.util.untrusted import clean_json, clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

__all__ = [
    "JobDefinitionLink",
    "LauncherLink",
    "QueueLink",
    "RequestLink",
    "SchedulerLink",
    "SchedulerLogLink",
    "drop_empty_links",
    "drop_request_link",
    "show_request",
    "show_ui",
    "show_ui_from_trigger",
    "task_page",
]


class SchedulerLink(BaseOperatorLink):
    """The app in the user interface of its scheduler, as soon as the scheduler reports a page."""

    name = "Scheduler UI"

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server finds the URL."""
        return "launch_link_scheduler"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - as Airflow calls it
        """Return the last reported page; empty text shows no link."""
        return getattr(operator, "ui_url", None) or ""


class _PageLink(BaseOperatorLink):
    """Another page of the scheduler's user interface; only AWS Batch has some."""

    page: str
    """Its name in `DescribeAppResponse.pages`."""

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server finds the URL."""
        return f"launch_link_{self.page.replace(' ', '_')}"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - as Airflow calls it
        """Return the last reported page; empty text shows no link."""
        return str(getattr(operator, "ui_pages", {}).get(self.page, ""))


class JobDefinitionLink(_PageLink):
    """The job definition of the app in AWS's console."""

    name = "Job definition"
    page = "job definition"


class QueueLink(_PageLink):
    """The queue of the app in AWS's console."""

    name = "Job queue"
    page = "queue"


class SchedulerLogLink(_PageLink):
    """The streams of all replicas and attempts in CloudWatch."""

    name = "CloudWatch log"
    page = "log"


_PAGE_LINKS = (JobDefinitionLink, QueueLink, SchedulerLogLink)


class RequestLink(BaseOperatorLink):
    """The request to the scheduler, which is shown with the task's rendered templates."""

    name = "Launch request"

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server finds the URL."""
        return "launch_link_request"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - as Airflow calls it
        """Return the page of the rendered templates of this task instance."""
        return f"{task_page(ti_key)}/rendered_templates"


class LauncherLink(BaseOperatorLink):
    """The task that has launched the app of a sensor, if the DAG names it."""

    name = "Launched by"

    @property
    def xcom_key(self) -> str:
        """The key under which Airflow's server finds the URL."""
        return "launch_link_launcher"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the page of that task in this run; empty text shows no link."""
        task_id = getattr(operator, "launched_by", None)
        return task_page(ti_key, task_id) if task_id else ""


def task_page(ti_key: TaskInstanceKey, task_id: str | None = None) -> str:
    """Return the page of a task instance in Airflow's user interface; `task_id` selects another task of its run."""
    base = conf.get("api", "base_url", fallback="") or "http://localhost:8080/"
    index = ti_key.map_index if task_id is None else -1
    mapped = "" if index in (None, -1) else f"/mapped/{index}"
    dag, run, task = (quote(text, safe="") for text in (ti_key.dag_id, ti_key.run_id, task_id or ti_key.task_id))
    return f"{base.rstrip('/')}/dags/{dag}/runs/{run}/tasks/{task}{mapped}"


def show_ui(operator: Any, ti: Any, url: str, pages: Mapping[str, str]) -> None:
    """Show the links to the scheduler now, because Airflow asks for links only when a worker is done."""
    url, pages = clean_text(url), clean_json(dict(pages))
    operator.ui_url, operator.ui_pages = url, pages
    # A missing link must not change how the task ends.
    with contextlib.suppress(Exception):
        for kind, address in _addresses(url, pages):
            ti.xcom_push(kind().xcom_key, address)
            _drop(operator, kind)


def drop_empty_links(operator: Any) -> None:
    """Remove links that have no target, so that Airflow does not store them."""
    if not getattr(operator, "ui_url", None):
        _drop(operator, SchedulerLink)
    pages = getattr(operator, "ui_pages", {})
    for kind in _PAGE_LINKS:
        if kind.page not in pages:
            _drop(operator, kind)
    if not getattr(operator, "launched_by", None):
        _drop(operator, LauncherLink)


def drop_request_link(operator: Any) -> None:
    """Remove the link to the request, which the first part of a deferred task has already stored."""
    _drop(operator, RequestLink)


def _drop(operator: Any, kind: type[BaseOperatorLink]) -> None:
    # Airflow stores each link of the operator again when a worker is done.
    operator.operator_extra_links = tuple(link for link in operator.operator_extra_links if not isinstance(link, kind))


def _addresses(url: str, pages: Mapping[str, str]) -> Iterator[tuple[type[SchedulerLink | _PageLink], str]]:
    yield SchedulerLink, url
    yield from ((kind, pages[kind.page]) for kind in _PAGE_LINKS if kind.page in pages)


async def show_ui_from_trigger(task_instance: Any, url: str, pages: Mapping[str, str]) -> None:
    """Show the links to the scheduler of a deferred task now; no-op without a task instance."""
    if task_instance is None:
        return
    where = {name: getattr(task_instance, name) for name in ("dag_id", "task_id", "run_id", "map_index")}
    with contextlib.suppress(Exception):
        for kind, address in _addresses(clean_text(url), clean_json(dict(pages))):
            await set_xcom(key=kind().xcom_key, value=address, **where)


def show_request(operator: Any, ti: Any) -> None:
    """Show the link to the request now, and the request on the linked page, if the operator has this link."""
    if not any(isinstance(link, RequestLink) for link in operator.operator_extra_links):
        return
    with contextlib.suppress(Exception):
        _send_rendered_fields(operator)
        # Once is enough; rendering all fields again at the end takes some milliseconds.
        operator.overwrite_rtif_after_execution = False
    with contextlib.suppress(Exception):
        ti.xcom_push(RequestLink().xcom_key, RequestLink().get_link(operator, ti_key=ti))
        _drop(operator, RequestLink)


def _send_rendered_fields(operator: Any) -> None:
    """Store the rendered fields now; Airflow does so only before the task starts and after it has ended."""
    # Private parts of Airflow: without them the request is shown only when the worker is done.
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import SetRenderedFields

    fields = task_runner._serialize_rendered_fields(operator)  # noqa: SLF001 - see above
    task_runner.SUPERVISOR_COMMS.send(SetRenderedFields(rendered_fields=fields))
