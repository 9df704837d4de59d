"""Capabilities and dry runs: requests are shown, and nothing runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.testing._base import Apps, ContractBase, difference


class DryRunTests(ContractBase):
    """A dry run shows the request that is sent, and starts nothing."""

    def test_declared_capabilities_are_those_of_the_scheduler(self, apps: Apps) -> None:
        """The launcher accepts or refuses requests by the declared capabilities."""
        assert apps.scheduler.capabilities == self.capabilities

    def test_app_and_cfg_of_the_caller_are_left_as_they_are(self, apps: Apps) -> None:
        """The next task launches the same objects again with other macros."""
        app = AppDef("contract", [apps.sh(f"echo {macros.replica_id}", env={"A": macros.app_id}, metadata={"a": [1]})])
        cfg: dict[str, Any] = {**apps.cfg}
        before = copy.deepcopy((app, cfg))
        app_id = apps.scheduler.schedule(apps.scheduler.submit_dryrun(app, cfg, app_id=apps.new_id()))
        apps.succeed(app_id)

        assert (app, cfg) == before

    def test_dry_run_equals_what_is_sent(self, apps: Apps) -> None:
        """A dry run that differs from the launch is worse than none."""
        script = 'for text in "$0" "$@" "$WHO"; do echo "$text"; done'
        args = ["-c", script, f"first-{macros.app_id}", f"second-{macros.app_id}"]
        roles = [
            apps.role("main", "sh", *args, env={"WHO": f"third-{macros.app_id}"}, num_replicas=2),
            apps.sh("true", "peer"),
        ]
        info = apps.dryrun(*roles, app_id=apps.new_id())
        shown = str(info)
        app_id = apps.scheduler.schedule(info)
        apps.succeed(app_id)

        # Check the running program, not only the stored request.
        written = [f"{word}-{app_id}" for word in ("first", "second", "third")]
        assert [text for text in written if text not in shown] == []
        for k in range(2):
            assert "".join(apps.lines(app_id, k=k)).splitlines() == written
        native = apps.another().describe_native(app_id)
        if native is None:
            return
        assert not (differs := difference(native.request, info.request)), f"`describe_native` differs: {differs}"
        assert str(native) == shown

    def test_dry_run_repeated_gives_the_same_request(self, apps: Apps) -> None:
        """Otherwise a repeated launch cannot be recognised."""
        app_id = apps.new_id()
        role = apps.sh("true", env={"A": "1"}, num_replicas=3)
        one = apps.dryrun(role, app_id=app_id)
        other = apps.another().submit_dryrun(AppDef("contract", [copy.deepcopy(role)]), apps.cfg, app_id=app_id)

        assert not (differs := difference(one.request, other.request)), f"the second request differs: {differs}"

    def test_dry_run_starts_nothing(self, apps: Apps) -> None:
        """A dry run is checked before money is spent."""
        app_id = apps.new_id()
        apps.dryrun(apps.sh("true"), app_id=app_id)

        assert apps.traces(app_id) == []

    def test_dry_run_needs_no_engine(self, apps: Apps, unreachable_params: dict[str, Any] | None) -> None:
        """DAGs are tested without a cluster."""
        if unreachable_params is None:
            pytest.skip("the backend has no `unreachable_params`")
        scheduler = self.create(**unreachable_params)
        app_id = apps.new_id()
        role = apps.sh("true")
        info = scheduler.submit_dryrun(AppDef("contract", [role]), apps.cfg, app_id=app_id)
        scheduler.close()

        differs = difference(info.request, apps.dryrun(role, app_id=app_id).request)
        assert not differs, f"the request depends on `params`: {differs}; keep what is in `params` out of it"

    def test_dry_run_hides_secrets(self, apps: Apps) -> None:
        """A dry run is printed into logs and shown in the web interface."""
        text = str(apps.dryrun(apps.sh("true", env={"API_TOKEN": "hush-hush", "LEVEL": "info-level"})))

        assert "hush-hush" not in text
        assert "info-level" in text
