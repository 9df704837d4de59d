"""Number of repetitions of random tests: few in `make test`, many in `make soak`."""

from __future__ import annotations

from airflow_provider_launch.testing._base import SOAK, often

__all__ = ["SOAK", "often"]
