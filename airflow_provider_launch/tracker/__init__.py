"""Trackers: what a run has made and with which numbers, kept where the job shows it."""

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
