"""Many followed logs: the requests for their attempts, and no missed attempt."""

from __future__ import annotations

import pytest

from airflow_provider_launch.follow.events import LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.roles import RetryPolicy
from airflow_provider_launch.specs.states import AppState
from tests.engines.aws_batch.containers import IDLE_IMAGE

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(120)]

ROOM = Resource(1, 0, 64)


def launch(scheduler: AwsBatchScheduler, queue: str, role: Role) -> str:
    info = scheduler.submit_dryrun(AppDef("many", [role]), {"queue": queue}, app_id=make_unique("many"))
    return str(scheduler.schedule(info))


def test_silent_logs_of_many_apps_need_no_list_of_attempts_of_their_own(scheduler, batch_server, batch_queue) -> None:
    """Followers poll the state anyway; a thousand silent logs cost 467 extra requests per minute."""
    role = Role("main", IDLE_IMAGE, entrypoint="sh", args=["-c", ""], resource=ROOM)
    ids = [launch(scheduler, batch_queue, role) for _ in range(10)]
    cursors = dict.fromkeys(ids)

    def read() -> None:
        for app_id in ids:
            cursors[app_id] = scheduler.read_logs(app_id, "main", 0, cursors[app_id]).cursor

    while any(found is None or found.state is not AppState.RUNNING for found in scheduler.describe_many(ids).values()):
        pass
    read()
    before = batch_server.control()["calls"].get("describejobs", 0)
    for _ in range(3):
        read()

    assert batch_server.control()["calls"].get("describejobs", 0) - before == 0


def test_followers_of_many_apps_have_the_lines_of_all_attempts(scheduler, batch_queue, docker_engine) -> None:
    script = "echo first of $$LAUNCH_ATTEMPT; sleep 1; echo last of $$LAUNCH_ATTEMPT; exit $$((3 - 3 * LAUNCH_ATTEMPT))"
    role = Role(
        "main",
        docker_engine.image,
        entrypoint="sh",
        args=["-c", script],
        resource=ROOM,
        num_replicas=4,
        max_retries=1,
        retry_policy=RetryPolicy.REPLICA,
    )
    found: dict[int, list[str]] = {}
    with Follower(scheduler, launch(scheduler, batch_queue, role), poll_interval_s=0.2) as follower:
        for event in follower:
            if isinstance(event, LogLines):
                found.setdefault(event.replica, []).extend(line.text.strip() for line in event.lines)

    assert found == {k: ["first of 0", "last of 0", "first of 1", "last of 1"] for k in range(4)}
