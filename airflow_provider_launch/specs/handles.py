"""Handles: texts that identify an app in any process."""

from __future__ import annotations

import re
from typing import NamedTuple

from airflow_provider_launch.specs.errors import MalformedAppHandleException
from airflow_provider_launch.specs.sentinels import AppHandle

# The last slash separates the app id; earlier slashes belong to the session.
_HANDLE = re.compile(r"(?P<scheduler>.+?)://(?P<session>.*)/(?P<app_id>[^/\n]+)")


class ParsedAppHandle(NamedTuple):
    """The parts of a handle; only the session may be empty."""

    scheduler_backend: str
    session_name: str
    app_id: str


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Return the handle of an app, without any check."""
    return f"{scheduler_backend}://{session_name}/{app_id}"


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Return the parts of a handle, or raise MalformedAppHandleException."""
    match = _HANDLE.fullmatch(app_handle)
    if match is None:
        raise MalformedAppHandleException(app_handle)
    return ParsedAppHandle(match["scheduler"], match["session"], match["app_id"])
