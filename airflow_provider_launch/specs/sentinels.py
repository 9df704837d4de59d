"""Texts that stand for "no value", and the smallest shared types."""

from __future__ import annotations

MISSING = "<MISSING>"
"""Never set."""

NONE = "<NONE>"
"""There is no value."""

UNKNOWN = "<UNKNOWN>"
"""The value exists, but cannot be read back."""

ALL = "all"
"""All schedulers."""

AppHandle = str
"""`{scheduler}://{session}/{app_id}`: enough to find an app in any process."""
