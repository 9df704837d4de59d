"""Trackers: artifacts and numbers of a run, kept by the backends that its launcher has configured."""

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
