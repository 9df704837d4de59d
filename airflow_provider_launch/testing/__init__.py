"""The contract tests that every scheduler passes on its real engine, ours and those of plug-ins. Needs pytest."""

from __future__ import annotations

import pkgutil

import pytest

# Before the import of these modules, so that their failed asserts show values.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))

from airflow_provider_launch.testing.contract import SchedulerContract  # noqa: E402 - see above
from airflow_provider_launch.testing.engine import Engine  # noqa: E402 - see above

__all__ = ["Engine", "SchedulerContract"]
