"""The replicas of an app, as its log readers need them."""

from __future__ import annotations

from airflow_provider_launch.follow.events import gap_of_unknown_roles
from airflow_provider_launch.follow.replicas import standings_of, waiting
from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.specs import AppState, Role
from airflow_provider_launch.specs.roles import MAX_REPLICAS
from airflow_provider_launch.specs.statuses import ReplicaStatus, RoleStatus


def test_a_plug_in_that_reports_any_number_of_replicas_costs_little() -> None:
    """A program has written the number into the record of its app; each replica would take memory in a triggerer."""
    roles = [Role("a", "", num_replicas=MAX_REPLICAS - 1), Role("b", "", num_replicas=50_000)]

    found = waiting(roles, None)

    assert len(found) == MAX_REPLICAS
    assert ("b", 0) in found
    assert len(waiting(roles, ["b"])) == MAX_REPLICAS
    assert len(standings_of(DescribeAppResponse("app", AppState.RUNNING, roles=roles), None)) == MAX_REPLICAS


def test_a_plug_in_that_reports_a_long_name_of_a_role_costs_little() -> None:
    """Each replica has a position with the name of its role as key."""
    long = "x" * 1_000_000
    status = RoleStatus(long, [ReplicaStatus(0, AppState.RUNNING, long, "")])
    response = DescribeAppResponse(
        "app", AppState.RUNNING, roles=[Role(long, "", num_replicas=9), Role("a", "")], roles_statuses=[status]
    )

    assert standings_of(response, None).keys() == {("a", 0)}
    gap = gap_of_unknown_roles(["b"], response)
    assert gap is not None
    assert len(gap.message) < 5000
