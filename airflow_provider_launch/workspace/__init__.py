"""Workspaces: local directories that are copied into the replicas of an app."""

from __future__ import annotations

from airflow_provider_launch.workspace.api import WorkspaceMixin, walk_workspace

__all__ = ["WorkspaceMixin", "walk_workspace"]
