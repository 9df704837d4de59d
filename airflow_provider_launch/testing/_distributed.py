"""Distributed training: addresses without a shell, the variables of PyTorch, services, elastic roles."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.specs.failures import in_order_of_failure
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, replicas
from airflow_provider_launch.testing._ending import short_grace
from airflow_provider_launch.testing._running import TALK

TORCH = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT",
    "PET_RDZV_BACKEND", "PET_RDZV_ID",
)  # fmt: skip
"""Variables that PyTorch, torchrun and Lightning read."""
_MEET = (
    'if [ "$RANK" = 0 ]; then mkfifo silence; exec 3<>silence; rm -f silence; serve "$MASTER_PORT"; else i=0; '
    'until echo "rank $RANK of $WORLD_SIZE" | send "$MASTER_ADDR" "$MASTER_PORT"; do '
    "i=$((i + 1)); test $i -lt 150 || exit 1; sleep 0.2; done; fi"
)
_SERVES = "trap 'exit 0' TERM; echo serves; i=0; while test $i -lt 1200; do sleep 0.1; i=$((i + 1)); done; exit 9"


class DistributedTests(ContractBase):
    """A program for PyTorch runs unchanged, and never as several trainings that do not notice each other."""

    def test_macros_give_hosts_and_ports_without_a_shell(self, apps: Apps) -> None:
        """A program reads its settings from arguments or variables; no shell expands `$NAME` in them."""
        self.needs(Capability.ADDRESSES)
        host, port, fixed = macros.rank0_host, macros.port("main", "p"), macros.port("main", "fixed")
        role = apps.role(
            "main",
            "sh",
            "-c",
            f'echo "$0 $WHERE $${macros.rank0_env}:$LAUNCH_PORT_MAIN_P:$LAUNCH_PORT_MAIN_FIXED"',
            f"{host}:{port}:{fixed}",
            env={"WHERE": f"{host}:{port}:{fixed}"},
            port_map={"p": 0, "fixed": 29513},
            num_replicas=2,
        )
        app_id = apps.start(role)
        found = apps.end(app_id)
        lines = [apps.lines(app_id, k=k)[0] for k in range(2)]
        argument, variable, known = lines[0].split()

        assert found.state is AppState.SUCCEEDED
        assert lines[0] == lines[1]
        assert argument == variable == known
        assert argument.endswith(":29513")
        assert "{" not in argument

    def test_text_that_looks_like_such_a_macro_stays(self, apps: Apps) -> None:
        """Values from other tasks are data."""
        self.needs(Capability.ADDRESSES)
        text = "${rank0_host} ${port.main.p}"
        app_id = apps.start(apps.role("main", "printf", "%s\\n", macros.escape(text), port_map={"p": 0}))
        apps.end(app_id)

        assert apps.lines(app_id) == [f"{text}\n"]

    def test_replicas_are_the_processes_of_one_torch_training(self, apps: Apps) -> None:
        """Without these variables each replica trains alone, and the app succeeds with a wrong model."""
        self.needs(Capability.ADDRESSES)
        app_id = apps.start(apps.role("main", "env", num_replicas=2, torch_env=True))
        found = apps.end(app_id)
        env = [dict(line.rstrip("\n").split("=", 1) for line in apps.lines(app_id, k=k) if "=" in line) for k in (0, 1)]

        assert found.state is AppState.SUCCEEDED
        assert [name for name in TORCH if not env[0].get(name)] == []
        for name in ("WORLD_SIZE", "PET_NNODES"):
            assert [each[name] for each in env] == ["2", "2"]
        for name in ("RANK", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK"):
            assert [each[name] for each in env] == ["0", "1"]
        assert [each["LOCAL_RANK"] for each in env] == ["0", "0"]
        for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PET_RDZV_ID"):
            assert env[0][name] == env[1][name]
        assert env[0]["PET_MASTER_ADDR"] == env[0]["MASTER_ADDR"]
        assert env[0]["PET_MASTER_PORT"] == env[0]["MASTER_PORT"]

    def test_the_ranks_of_a_torch_training_meet(self, apps: Apps) -> None:
        """Every rank connects to the address of rank 0, which serves there."""
        self.needs(Capability.ADDRESSES)
        app_id = apps.start(apps.sh(TALK + _MEET, num_replicas=2, torch_env=True))
        self._have_met(apps, app_id, ["rank 1 of 2\n"])

    def test_the_ranks_of_a_torch_training_meet_after_a_retry(self, apps: Apps) -> None:
        """The address may be another one in the next attempt, when rank 0 runs on another host."""
        self.needs(Capability.ADDRESSES)
        self.needs(Capability.APPLICATION_RETRY)
        script = f'{TALK}test "$LAUNCH_ATTEMPT" = 1 || exit 5; {_MEET}'
        policy = RetryPolicy.APPLICATION
        app_id = apps.start(apps.sh(script, num_replicas=2, torch_env=True, max_retries=1, retry_policy=policy))
        self._have_met(apps, app_id, ["rank 1 of 2\n"])

    @staticmethod
    def _have_met(apps: Apps, app_id: str, lines: list[str]) -> None:
        found = apps.end(app_id)
        if any(replica.exit_code == 77 for replica in replicas(found).values()):
            pytest.skip("the image has neither busybox nor python3, by which the replicas of this test talk")

        assert found.state is AppState.SUCCEEDED, found.msg
        assert apps.lines(app_id) == lines

    def test_the_replica_that_failed_first_is_named_although_it_ends_later(self, apps: Apps) -> None:
        """Its peers lose their connections and exit at once, while it stores its state or uploads a report."""
        script = (
            'test -n "$TORCHELASTIC_ERROR_FILE" || exit 9; '
            'wrote() { echo "{\\"message\\": {\\"message\\": \\"$1\\", \\"extraInfo\\": '
            '{\\"timestamp\\": \\"$2\\"}}}" > $TORCHELASTIC_ERROR_FILE; }; '
            'if [ "$LAUNCH_REPLICA_ID" = 1 ]; then wrote "ValueError: the cause" 100; '
            "trap 'exit 1' TERM; i=0; while test $i -lt 1200; do sleep 0.1; i=$((i + 1)); done; exit 1; fi; "
            'sleep 3; wrote "Connection closed by peer" 101; exit 1'
        )
        found = apps.run(apps.sh(script, num_replicas=2))
        if replicas(found)["main", 0].exit_code == 9:
            pytest.skip("the scheduler does not set TORCHELASTIC_ERROR_FILE")
        named = found.to_status().first_failed_replica()

        assert found.state is AppState.FAILED
        assert named is not None
        assert named.id == 1
        assert "the cause" in found.structured_error_msg

    def test_a_replica_that_reports_its_stop_has_not_failed(self, apps: Apps) -> None:
        """At TERM torchrun writes an error, and it may need longer than its grace."""
        script = (
            'test -n "$TORCHELASTIC_ERROR_FILE" || exit 9; '
            'if [ "$LAUNCH_REPLICA_ID" = 0 ]; then sleep 3; exit 5; fi; '
            'stop() { echo "{\\"message\\": {\\"message\\": \\"SignalException: Process 7 got signal: 15\\", '
            '\\"extraInfo\\": {\\"timestamp\\": \\"1\\"}}}" > $TORCHELASTIC_ERROR_FILE; }; '
            "trap stop TERM; while :; do sleep 0.1; done"
        )
        found = apps.run(apps.sh(script, num_replicas=2), **short_grace(apps))
        if replicas(found)["main", 0].exit_code == 9:
            pytest.skip("the scheduler does not set TORCHELASTIC_ERROR_FILE")

        assert found.state is AppState.FAILED
        assert replicas(found)["main", 1].state is AppState.CANCELLED
        failed = in_order_of_failure(replicas(found).values(), found.msg)
        assert [(one.id, one.exit_code) for one in failed] == [(0, 5)]

    # ---- services --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("order", ["first", "last"])
    def test_a_service_is_stopped_when_the_others_have_succeeded(self, apps: Apps, order: str) -> None:
        """A parameter server never ends by itself, so without this its app would run until its time limit."""
        self.needs(Capability.SERVICE_ROLES)
        service = apps.sh(_SERVES, "ps", num_replicas=2, service=True)
        trainer = apps.sh("sleep 1; echo trained", "trainer", num_replicas=2)
        app_id = apps.start(*([service, trainer] if order == "first" else [trainer, service]))
        found = apps.until_processes_end(app_id)

        assert found.state is AppState.SUCCEEDED, found.msg
        assert "trainer: 2 of 2 succeeded; stopped ps" in found.msg
        assert [replicas(found)["trainer", k].state for k in range(2)] == [AppState.SUCCEEDED] * 2
        assert [apps.lines(app_id, "ps", k)[0] for k in range(2)] == ["serves\n"] * 2
        assert apps.another().describe(app_id).state is AppState.SUCCEEDED  # type: ignore[union-attr] # it exists

    def test_a_service_that_is_killed_at_the_end_does_not_fail_the_app(self, apps: Apps) -> None:
        """A service that ignores TERM, or ends with an error when its clients leave, has done its work."""
        self.needs(Capability.SERVICE_ROLES)
        service = apps.sh("trap 'exit 7' TERM; while :; do sleep 0.1; done", "ps", service=True)
        found = apps.until_processes_end(apps.start(apps.sh("sleep 1", "trainer"), service))

        assert found.state is AppState.SUCCEEDED, found.msg
        assert replicas(found)["ps", 0].state is not AppState.FAILED

    def test_a_service_that_fails_before_fails_the_app(self, apps: Apps) -> None:
        """The trainers cannot continue without it."""
        self.needs(Capability.SERVICE_ROLES)
        found = apps.run(apps.sh("exec sleep 300", "trainer"), apps.sh("sleep 1; exit 7", "ps", service=True))

        assert found.state is AppState.FAILED
        assert replicas(found)["ps", 0].exit_code == 7
        assert "ps/0" in found.msg

    def test_services_are_refused_where_they_are_not_stopped(self, apps: Apps) -> None:
        """The app would run until its time limit, and then fail."""
        if Capability.SERVICE_ROLES in self.capabilities:
            pytest.skip("services are offered")
        with self.refused("ps", "service", apps.scheduler.backend):
            apps.dryrun(apps.sh("true", "trainer"), apps.sh("true", "ps", service=True))

    # ---- refusals --------------------------------------------------------------------------------------------

    def test_torch_variables_are_refused_where_they_cannot_be_filled_in(self, apps: Apps) -> None:
        """A missing address would make N trainings out of one."""
        if Capability.ADDRESSES in self.capabilities:
            pytest.skip("addresses are offered")
        for role in (
            apps.sh("true", "trainer", torch_env=True, num_replicas=2),
            apps.sh("true", "trainer", env={"HOST": macros.rank0_host}),
        ):
            with self.refused("trainer", "torch_env", apps.scheduler.backend):
                apps.dryrun(role)

    def test_a_bound_of_disruptions_is_refused_where_they_look_like_failures(self, apps: Apps) -> None:
        """Each loss of a node would use up a retry, or end the app."""
        role = apps.sh("true", "trainer", max_disruptions=1)
        if Capability.DISRUPTION_RETRY in self.capabilities:
            apps.dryrun(role)
        else:
            with self.refused("trainer", "max_disruptions", apps.scheduler.backend):
                apps.dryrun(role)

        assert not apps.refusal(apps.sh("true", "trainer", max_disruptions=0)), "0 means that each one is a failure"

    def test_elastic_roles_are_refused_where_all_replicas_are_needed(self, apps: Apps) -> None:
        """`min_replicas` promises that the app continues without some replicas."""
        app_id = apps.new_id()
        role = apps.sh("true", "trainer", num_replicas=2, min_replicas=1)
        if Capability.ELASTIC in self.capabilities:
            apps.dryrun(role, app_id=app_id)
            return
        with self.refused("trainer", "min_replicas", apps.scheduler.backend):
            apps.dryrun(role, app_id=app_id)

        assert not apps.refusal(apps.sh("true", "trainer", num_replicas=2, min_replicas=2))
