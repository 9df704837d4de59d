"""The session id, shared by everything that a process launches."""

from __future__ import annotations

import os
import threading
import uuid

from airflow_provider_launch.settings import ENV_TORCHX_INTERNAL_SESSION_ID as TORCHX_INTERNAL_SESSION_ID

CURRENT_SESSION_ID: str | None = None

_lock = threading.Lock()


def get_session_id_or_create_new() -> str:
    """Return the id of this process: inherited from the environment, or a new UUID; it never changes."""
    global CURRENT_SESSION_ID  # noqa: PLW0603 - the launcher model has it as a module variable
    with _lock:
        if CURRENT_SESSION_ID is None:
            CURRENT_SESSION_ID = os.environ.get(TORCHX_INTERNAL_SESSION_ID) or str(uuid.uuid4())
        return CURRENT_SESSION_ID


def get_torchx_session_id() -> str | None:
    """Return the id, or None if there is none yet; none is created."""
    return CURRENT_SESSION_ID
