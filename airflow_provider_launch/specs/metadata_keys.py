"""Keys that the launcher itself writes into app metadata; stored data, so their spelling is fixed."""

from __future__ import annotations

TORCHX_CONTEXT_NAME = "TORCHX_CONTEXT_NAME"
NA = "<<NA>>"


class app_metadata:  # noqa: N801 - a name of the launcher model
    """Keys of `AppDef.metadata`."""

    CONTEXT = "torchx/context"
    VERSION = "torchx/version"
    SCHEDULER = "torchx/scheduler"
    ROLES_PREFIX = "torchx/roles."
