"""What a scheduler answers about its apps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_launch.specs.roles import Role
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import AppStatus, RoleStatus

__all__ = ["DescribeAppResponse", "ListAppResponse"]

NOT_SET = "<NOT_SET>"


@dataclass(slots=True)
class DescribeAppResponse:
    """All that the scheduler knows of one app, the latest attempt of each replica."""

    app_id: str = NOT_SET
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = NONE
    structured_error_msg: str = NONE
    ui_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    roles_statuses: list[RoleStatus] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)

    def to_status(self) -> AppStatus:
        """Return the part that callers of the launcher see."""
        return AppStatus(
            state=self.state,
            num_restarts=self.num_restarts,
            msg=self.msg,
            structured_error_msg=self.structured_error_msg,
            ui_url=self.ui_url,
            roles=self.roles_statuses,
            metadata=dict(self.metadata),
        )


@dataclass
class ListAppResponse:
    """One row of a list of apps."""

    app_id: str
    state: AppState
    app_handle: str = NOT_SET
    name: str = ""
    owner: Mapping[str, str] = field(default_factory=dict)
    """`dag_id`, `run_id`, `task_id` and `map_index` of the task that launched it; empty: not launched by a task."""

    def __hash__(self) -> int:
        return hash((self.app_id, self.app_handle, self.state))
