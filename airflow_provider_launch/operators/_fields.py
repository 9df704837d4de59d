"""The interface of an operator for the parts of a running task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_provider_launch._task.cancel_on_kill import CancelThread
    from airflow_provider_launch._task.options import FollowOptions
    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.schedulers.responses import DescribeAppResponse


class OperatorFields(Protocol):
    """The rendered fields of a `LaunchAppOperator`, and those that a run sets for `on_kill` and the links."""

    component: str | None
    component_args: Any
    launch_conn_id: str
    cfg: Mapping[str, Any] | None
    workspace: Any
    wait: bool
    streams: Any
    log_roles: Any
    logs_from: str
    kill_policy: str
    unavailable_for_s: float
    time_limit_s: float | None
    start_limit_s: float | None
    on_finish: str | None
    results: str
    deferrable: bool
    defer_after_s: float | None
    request: str | None
    ui_url: str | None
    ui_pages: Mapping[str, str]
    retries: int | None
    execution_timeout: timedelta | None
    do_xcom_push: bool
    _killed: bool
    _killer: CancelThread | None

    @property
    def log(self) -> Any:
        """Return the logger of the task."""

    @property
    def follow_options(self) -> FollowOptions:
        """Return how the app is followed."""

    def is_skipped_by(self, exit_code: int | None) -> bool:
        """Return whether this exit code of the failed replica means "skip"."""

    def get_dag(self) -> Any:
        """Return the DAG of the task."""

    def defer(self, *, trigger: Any, method_name: str) -> Any:
        """Continue in the triggerer."""

    def _sources(self, context: Context) -> Sources:
        """Return which files and addresses the app may name."""

    def _app_ended(self, response: DescribeAppResponse) -> None: ...
