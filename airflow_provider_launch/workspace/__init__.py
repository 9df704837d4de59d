"""Workspaces: local directories that an app finds in its replicas."""

from __future__ import annotations

from airflow_provider_launch.workspace.api import WorkspaceMixin, walk_workspace

__all__ = ["WorkspaceMixin", "walk_workspace"]
