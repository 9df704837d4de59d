"""Defects in distributed training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.local.request import LocalReplica, LocalRequest
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.specs.states import AppState
from tests.contract.broken.defects import Local, Threads, caught_by


class _ChangesReplicas(Local):
    """Base of defects in the arguments and variables of replicas."""

    def _build_request(self, app: AppDef, opts: Any, app_id: str) -> LocalRequest:
        request = super()._build_request(app, opts, app_id)
        for role in request.roles:
            role.replicas[:] = [self.changed(replica, k) for k, replica in enumerate(role.replicas)]
        return request

    def changed(self, replica: LocalReplica, k: int) -> LocalReplica:
        raise NotImplementedError


def _with_env(change: Callable[[dict[str, str], int], dict[str, str]]) -> Any:
    def changed(_: Any, replica: LocalReplica, k: int) -> LocalReplica:
        return dataclasses.replace(replica, env={**replica.env, **change(replica.env, k)})

    return changed


@caught_by("test_macros_give_hosts_and_ports_without_a_shell")
class ReplacesNoAddressInArguments(_ChangesReplicas):
    def changed(self, replica: LocalReplica, k: int) -> LocalReplica:
        return dataclasses.replace(replica, args=[arg.replace("localhost", "${rank0_host}") for arg in replica.args])


@caught_by("test_text_that_looks_like_such_a_macro_stays")
class ReplacesAddressesInData(_ChangesReplicas):
    def changed(self, replica: LocalReplica, k: int) -> LocalReplica:
        return dataclasses.replace(replica, args=[arg.replace("${rank0_host}", "localhost") for arg in replica.args])


@caught_by("test_replicas_are_the_processes_of_one_torch_training", "test_the_ranks_of_a_torch_training_meet")
class MakesEachReplicaRank0(_ChangesReplicas):
    timeout_s = 6
    changed = _with_env(lambda env, _: {"RANK": "0"} if "RANK" in env else {})


@caught_by("test_the_ranks_of_a_torch_training_meet")
class GivesEachRankAnotherPort(_ChangesReplicas):
    timeout_s = 6
    changed = _with_env(lambda env, k: {"MASTER_PORT": str(29600 + k)} if "RANK" in env else {})


@caught_by("test_the_ranks_of_a_torch_training_meet_after_a_retry")
class KnowsTheAddressOfTheFirstAttemptOnly(_ChangesReplicas):
    timeout_s = 6

    def changed(self, replica: LocalReplica, k: int) -> LocalReplica:
        if "RANK" not in replica.env:
            return replica
        text = 'test "$LAUNCH_ATTEMPT" = 0 || MASTER_PORT=$((29600 + RANK)); '
        return dataclasses.replace(replica, args=[replica.args[0], text + replica.args[1]])


@caught_by(
    "test_a_service_is_stopped_when_the_others_have_succeeded[first]",
    "test_a_service_is_stopped_when_the_others_have_succeeded[last]",
    "test_a_service_that_is_killed_at_the_end_does_not_fail_the_app",
)
class WaitsForServices(Local):
    timeout_s = 4

    def _build_request(self, app: AppDef, opts: Any, app_id: str) -> LocalRequest:
        request = super()._build_request(app, opts, app_id)
        request.roles = [dataclasses.replace(role, service=False) for role in request.roles]
        return request


class _ChangesReports(Local):
    def reported(self, found: DescribeAppResponse) -> None:
        raise NotImplementedError

    def describe_many(self, app_ids: Any) -> Any:
        answers = super().describe_many(app_ids)
        for found in answers.values():
            if found:
                self.reported(found)
        return answers


@caught_by("test_the_replica_that_failed_first_is_named_although_it_ends_later")
class ReadsNoErrorsOfStoppedReplicas(_ChangesReports):
    def reported(self, found: DescribeAppResponse) -> None:
        for role in found.roles_statuses:
            for replica in role.replicas:
                if replica.state is AppState.CANCELLED:
                    replica.structured_error_msg = NONE


@caught_by(
    "test_a_service_that_is_killed_at_the_end_does_not_fail_the_app",
    "test_a_replica_that_reports_its_stop_has_not_failed",
)
class TakesStoppedReplicasForFailed(_ChangesReports):
    def reported(self, found: DescribeAppResponse) -> None:
        for role in found.roles_statuses:
            for replica in role.replicas:
                if replica.exit_code and replica.state is AppState.CANCELLED:
                    replica.state = AppState.FAILED


@caught_by("test_a_service_that_fails_before_fails_the_app")
class IgnoresFailuresOfServices(_ChangesReports):
    timeout_s = 4

    def reported(self, found: DescribeAppResponse) -> None:
        if "ps/0" in found.msg:
            found.state, found.msg = AppState.RUNNING, ""


@caught_by(
    "test_services_are_refused_where_they_are_not_stopped",
    "test_torch_variables_are_refused_where_they_cannot_be_filled_in",
    "test_a_bound_of_disruptions_is_refused_where_they_look_like_failures",
    "test_elastic_roles_are_refused_where_all_replicas_are_needed",
)
class TakesWhatItCannotDo(Threads):
    def _refuse_missing(self, app: AppDef) -> None:
        """Refuse nothing."""
