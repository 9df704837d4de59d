"""The data model of apps, without Airflow and without any client library.

Importing this package runs no discovery: named resources are looked up when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_launch.settings import LAUNCH_HOME
from airflow_provider_launch.specs import api
from airflow_provider_launch.specs.api import *  # noqa: F403 - `api` lists the data model
from airflow_provider_launch.specs.capabilities import CapabilityKey
from airflow_provider_launch.specs.metadata_keys import NA, TORCHX_CONTEXT_NAME, app_metadata
from airflow_provider_launch.specs.named_resources import (
    ResourceFactory,
    get_named_resources,
    named_resources,
    resource,
)
from airflow_provider_launch.specs.resources import GiB
from airflow_provider_launch.specs.roles import parse_mounts
from airflow_provider_launch.util.modules import import_attr

if TYPE_CHECKING:
    from airflow_provider_launch.specs.builders import materialize_appdef

__all__ = [
    "LAUNCH_HOME",
    "NA",
    "TORCHX_CONTEXT_NAME",
    "CapabilityKey",
    "GiB",
    "ResourceFactory",
    "app_metadata",
    "get_named_resources",
    "import_attr",
    "materialize_appdef",
    "named_resources",
    "parse_mounts",
    "resource",
]
__all__ += api.__all__


def __getattr__(name: str) -> Any:
    # Only for a component, because each start of a task would pay for its parser of docstrings.
    if name == "materialize_appdef":
        from airflow_provider_launch.specs.builders import materialize_appdef

        return materialize_appdef
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
