"""Retries: which replicas are started again after a failure, and how often."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, MakeProcess, replicas

CAPABILITY = {
    RetryPolicy.REPLICA: Capability.REPLICA_RETRY,
    RetryPolicy.APPLICATION: Capability.APPLICATION_RETRY,
    RetryPolicy.ROLE: Capability.ROLE_RETRY,
}
SECOND_TIME_LUCKY = "echo attempt $LAUNCH_ATTEMPT; test $LAUNCH_ATTEMPT = 1 || exit 5"


class RetryTests(ContractBase):
    """Retries are counted exactly: one too few loses a night, one too many costs money."""

    @pytest.mark.parametrize("policy", list(RetryPolicy))
    def test_policy_that_is_not_offered_is_refused(self, apps: Apps, policy: RetryPolicy) -> None:
        """A silently missing retry is noticed only when it is needed."""
        app_id = apps.new_id()
        role = apps.sh("exit 1", "trainer", max_retries=1, retry_policy=policy)
        if CAPABILITY[policy] in self.capabilities:
            apps.dryrun(role, app_id=app_id)
        else:
            with self.refused("trainer", "retry_policy", policy.value, apps.scheduler.backend):
                apps.dryrun(role, app_id=app_id)

        assert apps.traces(app_id) == []

    @pytest.mark.parametrize("policy", list(RetryPolicy))
    def test_any_policy_is_accepted_without_retries(self, apps: Apps, policy: RetryPolicy) -> None:
        """Without retries the policy has no effect."""
        app_id = apps.start(apps.sh("exit 1", retry_policy=policy))

        assert apps.end(app_id).state is AppState.FAILED
        apps.expect_starts(app_id, 1)

    @pytest.mark.parametrize("max_retries", [1, 3])
    def test_replica_retries_restart_that_replica_exactly_as_often(self, apps: Apps, max_retries: int) -> None:
        """The other replicas continue undisturbed."""
        self.needs(Capability.REPLICA_RETRY)
        script = f"echo run; test {macros.replica_id} = 1 && exit 5; exec sleep 300"
        role = apps.sh(script, num_replicas=2, max_retries=max_retries, retry_policy=RetryPolicy.REPLICA)
        app_id = apps.start(role)
        found = apps.end(app_id)

        assert found.state is AppState.FAILED
        assert found.num_restarts == max_retries
        assert replicas(found)["main", 1].num_restarts == max_retries
        assert replicas(found)["main", 1].exit_code == 5
        assert apps.lines(app_id, k=1) == ["run\n"] * (max_retries + 1)
        assert apps.lines(app_id, k=0) == ["run\n"]
        apps.expect_starts(app_id, max_retries + 2)

    @pytest.mark.parametrize("max_retries", [1, 2])
    def test_application_retries_restart_all_roles_exactly_as_often(self, apps: Apps, max_retries: int) -> None:
        """Replicas that depend on each other restart together."""
        self.needs(Capability.APPLICATION_RETRY)
        bad = apps.sh("echo run; sleep 1; exit 5", "bad", max_retries=max_retries)
        app_id = apps.start(apps.sh("echo run; exec sleep 300", "peer"), bad)
        found = apps.end(app_id)

        assert found.state is AppState.FAILED
        assert found.num_restarts == max_retries
        assert apps.lines(app_id, "bad") == ["run\n"] * (max_retries + 1)
        assert apps.lines(app_id, "peer") == ["run\n"] * (max_retries + 1)
        apps.expect_starts(app_id, 2 * (max_retries + 1))
        assert {place: replica.state for place, replica in replicas(found).items()} == {
            ("bad", 0): AppState.FAILED,
            ("peer", 0): AppState.CANCELLED,
        }

    def test_role_retries_restart_the_whole_role_and_no_other(self, apps: Apps) -> None:
        """All replicas of the role restart together, the other roles continue."""
        self.needs(Capability.ROLE_RETRY)
        script = f"echo run; test {macros.replica_id} = 1 || exec sleep 300; sleep 1; exit 5"
        bad = apps.sh(script, "bad", num_replicas=2, max_retries=1, retry_policy=RetryPolicy.ROLE)
        app_id = apps.start(apps.sh("echo run; exec sleep 300", "peer"), bad)

        assert apps.end(app_id).state is AppState.FAILED
        assert [apps.lines(app_id, "bad", k) for k in range(2)] == [["run\n"] * 2] * 2
        assert apps.lines(app_id, "peer") == ["run\n"]

    @pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
    def test_a_retry_that_succeeds_makes_the_app_succeed(self, apps: Apps, policy: RetryPolicy) -> None:
        """Remaining retries are not used."""
        self.needs(CAPABILITY[policy])
        app_id = apps.start(apps.sh(SECOND_TIME_LUCKY, max_retries=4, retry_policy=policy))
        found = apps.end(app_id)

        assert found.state is AppState.SUCCEEDED
        assert found.num_restarts == 1
        assert replicas(found)["main", 0].exit_code == 0
        assert apps.lines(app_id) == ["attempt 0\n", "attempt 1\n"]
        apps.expect_starts(app_id, 2)

    @pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
    def test_success_is_not_retried(self, apps: Apps, policy: RetryPolicy) -> None:
        """A second run may repeat work that is done."""
        self.needs(CAPABILITY[policy])
        app_id = apps.start(apps.sh("echo run", max_retries=3, retry_policy=policy, num_replicas=2))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert [apps.lines(app_id, k=k) for k in range(2)] == [["run\n"]] * 2
        apps.expect_starts(app_id, 2)

    @pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
    def test_retries_are_exact_with_many_observers(self, apps: Apps, policy: RetryPolicy) -> None:
        """Worker, triggerer and sensor poll in parallel; if observers make the retries, each is made once."""
        self.needs(CAPABILITY[policy])
        role = apps.sh("echo run; sleep 0.3; exit 5", max_retries=3, retry_policy=policy)
        app_id = apps.start(role)
        histories = apps.histories(app_id, observers=6)

        assert apps.lines(app_id) == ["run\n"] * 4
        apps.expect_starts(app_id, 4)
        for history in histories:
            # Between two attempts the app stays RUNNING: no observer may report the pause as an end.
            assert history[-1] is AppState.FAILED
            assert sorted(history) == history

    @pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
    def test_retries_are_exact_when_observers_are_killed(
        self, apps: Apps, make_process: MakeProcess, policy: RetryPolicy
    ) -> None:
        """If observers make the retries, one may be killed during a retry."""
        self.needs(CAPABILITY[policy])
        processes = [make_process() for _ in range(4)]
        for process in processes:
            process.call("list")  # it is up
        role = apps.sh("echo run; sleep 0.2; exit 5", max_retries=3, retry_policy=policy, num_replicas=2)
        app_id = apps.start(role)
        for number, process in enumerate(processes):
            for _ in range(50):
                process.send("describe", app_id=app_id)
            time.sleep(0.25 + 0.07 * number)
            process.kill()
        found = apps.end(app_id)
        written = [apps.lines(app_id, k=k) for k in range(2)]

        assert found.state is AppState.FAILED
        assert max(len(lines) for lines in written) == 4
        apps.expect_starts(app_id, sum(len(lines) for lines in written))

    def test_peers_with_different_policies_keep_their_own_count(self, apps: Apps) -> None:
        """Retries are counted separately for each role."""
        self.needs(Capability.REPLICA_RETRY)
        flaky = apps.sh(SECOND_TIME_LUCKY, "flaky", max_retries=1, retry_policy=RetryPolicy.REPLICA, num_replicas=2)
        app_id = apps.start(flaky, apps.sh("echo run; sleep 2", "steady"))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert [apps.lines(app_id, "flaky", k) for k in range(2)] == [["attempt 0\n", "attempt 1\n"]] * 2
        assert apps.lines(app_id, "steady") == ["run\n"]

    @pytest.mark.parametrize("policy", [RetryPolicy.REPLICA, RetryPolicy.APPLICATION])
    def test_cancel_ends_the_retries(self, apps: Apps, policy: RetryPolicy) -> None:
        """An app that restarts after its cancel could not be ended."""
        self.needs(CAPABILITY[policy])
        app_id = apps.start(apps.sh("echo up; sleep 0.5; exit 5", max_retries=1000, retry_policy=policy))
        apps.until_written(app_id, "up")
        apps.scheduler.cancel(app_id)
        found = apps.end(app_id)
        started = apps.engine.starts(app_id), len(apps.lines(app_id))
        time.sleep(1.5)
        later = apps.another().describe(app_id)

        assert found.state is AppState.CANCELLED
        assert later is not None
        assert later.state is AppState.CANCELLED
        assert (apps.engine.starts(app_id), len(apps.lines(app_id))) == started
        apps.until_nothing_is_alive(app_id)
