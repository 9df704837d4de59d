"""Keys of app metadata that the launcher writes; the spelling of stored data is fixed."""

from __future__ import annotations

TORCHX_CONTEXT_NAME = "TORCHX_CONTEXT_NAME"
NA = "<<NA>>"


class app_metadata:  # noqa: N801 - name of the launcher model
    """Keys of `AppDef.metadata`."""

    CONTEXT = "torchx/context"
    VERSION = "torchx/version"
    SCHEDULER = "torchx/scheduler"
    ROLES_PREFIX = "torchx/roles."
