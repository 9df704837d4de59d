"""The data model on one page: apps, states, status, options, dry run, errors, handles."""

from __future__ import annotations

from airflow_provider_launch.settings import TORCHX_HOME
from airflow_provider_launch.specs import cases
from airflow_provider_launch.specs.app_dict import app_from_dict, app_to_dict
from airflow_provider_launch.specs.check import check_app
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import (
    AppConflictError,
    AppFailedError,
    AppStatusError,
    AppUnavailableError,
    InvalidAppError,
    InvalidRunConfigException,
    LaunchError,
    MalformedAppHandleException,
    MissingDependencyError,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    SessionMismatchException,
    UnknownAppException,
    UnknownOutcomeError,
    UnknownSchedulerException,
    UnsupportedError,
)
from airflow_provider_launch.specs.handles import ParsedAppHandle, make_app_handle, parse_app_handle
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.resources import NULL_RESOURCE, Resource
from airflow_provider_launch.specs.roles import (
    AppDef,
    BindMount,
    DeviceMount,
    Mount,
    MountType,
    RetryPolicy,
    Role,
    VolumeMount,
)
from airflow_provider_launch.specs.runopts import CfgVal, runopt, runopts
from airflow_provider_launch.specs.sentinels import ALL, MISSING, NONE, UNKNOWN, AppHandle
from airflow_provider_launch.specs.states import AppState, ReplicaState, is_started, is_terminal
from airflow_provider_launch.specs.statuses import AppStatus, ReplicaStatus, RoleStatus
from airflow_provider_launch.specs.workspaces import Workspace
from airflow_provider_launch.util.types import get_type_name, to_dict

__all__ = [
    "ALL",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "TORCHX_HOME",
    "UNKNOWN",
    "AppConflictError",
    "AppDef",
    "AppDryRunInfo",
    "AppFailedError",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "AppUnavailableError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "InvalidAppError",
    "InvalidRunConfigException",
    "LaunchError",
    "MalformedAppHandleException",
    "MissingDependencyError",
    "Mount",
    "MountType",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "SchedulerRejectedError",
    "SchedulerUnavailableError",
    "SessionMismatchException",
    "UnknownAppException",
    "UnknownOutcomeError",
    "UnknownSchedulerException",
    "UnsupportedError",
    "VolumeMount",
    "Workspace",
    "app_from_dict",
    "app_to_dict",
    "cases",
    "check_app",
    "get_type_name",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "parse_app_handle",
    "runopt",
    "runopts",
    "to_dict",
]
