"""A dry run shows the request, and refuses what the scheduler does not support."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from airflow_provider_launch.runner.api import Runner
from airflow_provider_launch.schedulers.api import Capability, Scheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import AppDef, BindMount, DeviceMount, Mount, VolumeMount
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, difference, replicas


class RefusalTests(ContractBase):
    """Capabilities work; other features are refused with role, field, backend and fix."""

    @pytest.mark.parametrize(
        ("mount", "capability"),
        [
            (BindMount("/etc", "/mnt"), Capability.BIND_MOUNT),
            (VolumeMount("contract-volume", "/mnt"), Capability.VOLUME_MOUNT),
            (DeviceMount("/dev/null", "/dev/contract"), Capability.DEVICE_MOUNT),
        ],
        ids=["bind", "volume", "device"],
    )
    def test_mount_is_accepted_or_refused(self, apps: Apps, mount: Mount, capability: Capability) -> None:
        """A program that does not find its data trains on nothing, or fails after hours in a queue."""
        app_id = apps.new_id()
        role = apps.sh("true", "trainer", mounts=[mount])
        if capability in self.capabilities:
            assert mount.dst_path in str(apps.dryrun(role, app_id=app_id))
        else:
            with self.refused("trainer", "mount", apps.scheduler.backend):
                apps.dryrun(role, app_id=app_id)

        assert apps.traces(app_id) == []

    def test_program_of_the_image_is_accepted_or_refused(self, apps: Apps) -> None:
        """An empty program would start nothing, or the first argument."""
        app_id = apps.new_id()
        role = apps.role("trainer", None, "an-argument")
        if Capability.IMAGE_ENTRYPOINT in self.capabilities:
            assert "an-argument" in str(apps.dryrun(role, app_id=app_id))
        else:
            with self.refused("trainer", "entrypoint", apps.scheduler.backend):
                apps.dryrun(role, app_id=app_id)

        assert apps.traces(app_id) == []

    def test_bound_directory_is_there_and_read_only(self, apps: Apps) -> None:
        """Data of the host must be visible, and read-only if requested."""
        self.needs(Capability.BIND_MOUNT)
        # Every user may write in /tmp, so only the mount prevents it. It is mounted separately, because engines differ
        # in whether mounts below a read-only directory are read-only too.
        file = f"/scratch/{macros.app_id}"
        script = (
            "test -d /mnt/proc && test -d /mnt/etc && test -d /scratch || exit 3; "
            f"if touch {file} 2>/dev/null; then rm -f {file}; exit 4; fi; exit 0"
        )
        mounts = [BindMount("/", "/mnt", read_only=True), BindMount("/tmp", "/scratch", read_only=True)]  # noqa: S108 - see above
        found = apps.run(apps.sh(script, mounts=mounts))

        assert replicas(found)["main", 0].exit_code == 0
        assert found.state is AppState.SUCCEEDED

    def test_device_of_the_host_is_passed(self, apps: Apps) -> None:
        """Without its device a program may use a fallback that is a hundred times slower."""
        self.needs(Capability.DEVICE_MOUNT)
        found = apps.run(apps.sh("test -c /dev/contract", mounts=[DeviceMount("/dev/null", "/dev/contract")]))

        assert found.state is AppState.SUCCEEDED

    def test_gpu_that_cannot_be_had_is_refused(self, apps: Apps) -> None:
        """No host has that many GPUs; on CPUs alone the run would take months."""
        app_id = apps.new_id()
        role = apps.sh("true", "trainer", resource=Resource(cpu=1, gpu=1000, memMB=128))
        if Capability.GPU in self.capabilities and not apps.refusal(role):
            # A scheduler that cannot count the GPUs of a cluster must at least request them.
            assert "1000" in str(apps.dryrun(role, app_id=app_id))
        else:
            with self.refused("trainer", "gpu", apps.scheduler.backend):
                apps.dryrun(role, app_id=app_id)

        assert apps.traces(app_id) == []

    def test_device_that_nobody_knows_is_refused(self, apps: Apps) -> None:
        """A misspelt device would be missing in the program."""
        app_id = apps.new_id()
        resource = Resource(cpu=1, gpu=0, memMB=128, devices={"no-such-device": 1})
        with self.refused("trainer", "no-such-device", apps.scheduler.backend):
            apps.dryrun(apps.sh("true", "trainer", resource=resource), app_id=app_id)

        assert apps.traces(app_id) == []

    def test_workspace_is_refused_where_it_cannot_be_mirrored(self, apps: Apps, tmp_path: Any) -> None:
        """The replicas would run old code."""
        if Capability.WORKSPACE in self.capabilities:
            pytest.skip("workspaces are offered")
        # The engine may be shared, so the name of the app is unique.
        app = AppDef(make_unique("contract"), [apps.sh("true")])
        with self.refused(apps.scheduler.backend, error=ValueError):
            apps.keep(apps.scheduler.submit(app, apps.cfg, workspace=str(tmp_path)))

        assert app.name not in {row.name for row in apps.scheduler.list()}

    def test_unknown_option_is_refused(self, apps: Apps) -> None:
        """A misspelt option must not be ignored silently."""
        if not len(apps.scheduler.run_opts()):
            pytest.skip("the scheduler declares no options and accepts all")
        app_id, backend = apps.new_id(), apps.scheduler.backend
        app = AppDef("contract", [apps.sh("true")])
        runner = Runner("contract", {backend: lambda *_, **__: apps.another()})
        with runner, pytest.raises(InvalidRunConfigException, match="no_such_option"):
            runner.dryrun(app, backend, {**apps.cfg, "no_such_option": 1}, app_id=app_id)

        assert apps.traces(app_id) == []

    def test_unknown_param_is_refused(self, params: dict[str, Any]) -> None:
        """A misspelt param, such as that of the directory, would mean another set of apps."""

        def create(session_name: str, **given: Any) -> Scheduler[Any]:  # noqa: ARG001 - what a factory takes
            return self.create(**given)

        runner = Runner("contract", {"contract": create}, scheduler_params={"contract": {**params, "no_such_param": 1}})
        with runner, pytest.raises((TypeError, InvalidAppError), match="no_such_param"):
            runner.scheduler("contract")

    def test_wrong_value_of_an_option_is_refused(self, apps: Apps) -> None:
        """The error names the option, before anything is launched."""
        app_id = apps.new_id()
        names = [name for name, _ in apps.scheduler.run_opts()]
        if not names:
            pytest.skip("the scheduler declares no options")
        for name in names:
            with pytest.raises(InvalidAppError, match=name):
                apps.dryrun(apps.sh("true"), app_id=app_id, **{name: object()})

        assert apps.traces(app_id) == []

    def test_every_declared_default_is_accepted(self, apps: Apps) -> None:
        """Each documented default can also be set explicitly."""
        defaults = {name: opt.default for name, opt in apps.scheduler.run_opts() if not opt.is_required}
        found = apps.run(apps.sh("true"), **{**defaults, **apps.cfg})

        assert found.state is AppState.SUCCEEDED
        assert replicas(found)["main", 0].exit_code == 0


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
