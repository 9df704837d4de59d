"""What runs: roles, replicas, and what they are given."""

from __future__ import annotations

from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase

__all__ = ["RunningTests"]


class RunningTests(ContractBase):
    """Roles and replicas run, and get what they were promised."""

    def test_one_role_runs_to_its_end(self, apps: Apps) -> None:
        """The least that a scheduler must do."""
        app_id = apps.start(apps.sh("echo hello"))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert found.app_id == app_id
        assert apps.lines(app_id) == ["hello\n"]
        assert apps.engine.starts(app_id) in {None, 1}
