"""How often what happens by chance is tried: a few times by `make test`, as often as it takes by `make soak`."""

from __future__ import annotations

from airflow_provider_launch.testing._repeats import SOAK, often

__all__ = ["SOAK", "often"]
