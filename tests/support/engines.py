"""Engines required by the environment: `LAUNCH_REQUIRE_ENGINES=all`, or names with commas between."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

_VARIABLE = "LAUNCH_REQUIRE_ENGINES"
_ALL = "all"


def required(engine: str) -> bool:
    """Return whether a missing engine is an error; root may then install it."""
    return bool({_ALL, engine} & _wanted())


def refuse_unknown(engines: Iterable[str]) -> None:
    """Refuse unknown names, because their tests would be skipped silently."""
    known = [*engines, _ALL]
    if unknown := sorted(_wanted().difference(known)):
        named = ", ".join(map(repr, unknown))
        raise pytest.UsageError(f"{_VARIABLE} names {named}; known are {', '.join(known)}")


def _wanted() -> set[str]:
    return {name.strip() for name in os.environ.get(_VARIABLE, "").split(",")} - {""}
