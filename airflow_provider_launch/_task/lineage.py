"""Makes the task the parent of the runs that its replicas report to OpenLineage."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_launch.schedulers.spec_hash import LINEAGE_PARENT, LINEAGE_ROOT_PARENT
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, Role

_PROVIDER = "airflow.providers.openlineage"


def with_parent_run(app: AppDef, ti: Any, warn: Callable[..., object]) -> AppDef:
    """Return the app with the task instance as parent run in each role's variables, if OpenLineage is active.

    Variables that a role sets itself stay. The given app is not changed.
    """
    env = parent_env(ti, warn)
    return dataclasses.replace(app, roles=[_with_env(role, env) for role in app.roles]) if env else app


def parent_env(ti: Any, warn: Callable[..., object]) -> dict[str, str]:
    """Return the variables by which programs find their parent run: `namespace/job/run id`.

    Empty if the OpenLineage provider is not installed, or disabled in general or for this operator.

    Args:
        ti: the running task instance.
        warn: takes a warning and its arguments if the provider fails; the task continues without the variables.
    """
    try:
        conf = importlib.import_module(f"{_PROVIDER}.conf")
    except ImportError:
        return {}
    try:
        if conf.is_disabled():
            return {}
        utils = importlib.import_module(f"{_PROVIDER}.utils.utils")
        if utils.is_operator_disabled(ti.task) or not utils.is_selective_lineage_enabled(ti.task):
            return {}
        found = importlib.import_module(f"{_PROVIDER}.plugins.macros")
        return {
            LINEAGE_PARENT: macros.escape(found.lineage_parent_id(ti)),
            LINEAGE_ROOT_PARENT: macros.escape(found.lineage_root_parent_id(ti)),
        }
    except Exception as error:  # noqa: BLE001 - lineage must not keep an app from running
        warn("the replicas get no parent run, since OpenLineage failed: %s", error)
        return {}


def _with_env(role: Role, env: Mapping[str, str]) -> Role:
    clone = copy.copy(role)
    # Not `replace`: a subclass may have its own constructor or be frozen.
    object.__setattr__(clone, "env", {**env, **role.env})
    return clone
