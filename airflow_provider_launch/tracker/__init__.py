"""Trackers: artifacts and values of a run, stored by the backends that its launcher configured."""

from __future__ import annotations

from airflow_provider_launch.tracker.api import (
    AppRun,
    Lineage,
    TrackerArtifact,
    TrackerBase,
    TrackerSource,
    app_run_from_env,
)

__all__ = ["AppRun", "Lineage", "TrackerArtifact", "TrackerBase", "TrackerSource", "app_run_from_env"]
