"""Texts that stand for "no value", and the smallest shared names."""

from __future__ import annotations

MISSING = "<MISSING>"
"""Never set."""

NONE = "<NONE>"
"""There is no value."""

UNKNOWN = "<UNKNOWN>"
"""There is a value, but it cannot be read back."""

ALL = "all"
"""Every scheduler."""

AppHandle = str
"""`{scheduler}://{session}/{app_id}`: enough to find an app from any process."""
