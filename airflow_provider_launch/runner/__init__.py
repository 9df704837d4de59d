"""The public API of the launcher, without Airflow."""

from __future__ import annotations

from airflow_provider_launch.runner.api import Runner, get_runner

__all__ = ["Runner", "get_runner"]
