"""Running jobs: their logs and results, and the permissions to read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from airflow_provider_launch.follow.events import LogGap
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.schedulers.api import DescribeAppResponse
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler
from airflow_provider_launch.schedulers.ids import make_unique
from airflow_provider_launch.specs import AppDef, Resource, Role
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.states import AppState
from tests.aws_batch.conftest import described
from tests.engines.aws_batch.names import REGION
from tests.faults import Fault, FaultProxy, error
from tests.support.entrypoints import image_with_entrypoint

pytestmark = [pytest.mark.engine("aws_batch"), pytest.mark.timeout(120)]

ROOM = Resource(1, 0, 64)


@pytest.fixture
def launch(scheduler, batch_queue, docker_engine) -> Callable[..., str]:
    def launch(*roles: tuple[str, str, list[str], int], **cfg: Any) -> str:
        made = [
            Role(name, docker_engine.image, entrypoint=program, args=args, num_replicas=count, resource=ROOM)
            for name, program, args, count in roles
        ]
        info = scheduler.submit_dryrun(AppDef("jobs", made), {"queue": batch_queue, **cfg}, app_id=make_unique("jobs"))
        return str(scheduler.schedule(info))

    return launch


def test_the_entrypoint_of_the_image_runs_with_the_args(scheduler, batch_queue, docker_engine) -> None:
    image = image_with_entrypoint(docker_engine.client, docker_engine.image)
    try:
        role = Role("main", image, entrypoint=None, args=["a  b", "$HOME"], resource=ROOM)
        info = scheduler.submit_dryrun(AppDef("jobs", [role]), {"queue": batch_queue}, app_id=make_unique("jobs"))
        app_id = scheduler.schedule(info)

        assert lines(scheduler, app_id, 2) == ["<a  b>", "<$HOME>"]
        assert described(scheduler, app_id).state is AppState.SUCCEEDED
        assert [*scheduler.iter_results(app_id)] == [None]
    finally:
        docker_engine.client.images.remove(image, force=True)


def lines(scheduler: AwsBatchScheduler, app_id: str, count: int, role: str = "main", k: int = 0) -> list[str]:
    """Return `count` lines, without waiting for the end of a log that has no mark."""
    cursor, found = None, []
    while len(found) < count:
        chunk = scheduler.read_logs(app_id, role, k, cursor)
        cursor = chunk.cursor
        found += [line.text.strip() for line in chunk.lines]
    return found


@pytest.mark.parametrize("shell", [True, False])
def test_a_program_sees_the_variables_of_its_role_only(scheduler, batch_queue, docker_engine, shell) -> None:
    """Not the values of other roles, nor the record of the app: the masker would not know them if they are printed."""
    show = "env; tr '\\0' '\\n' </proc/1/environ; tr '\\0' '\\n' </proc/1/cmdline; echo; echo over"
    made = []
    # Batch ends the others when the first node has ended.
    for name, stays in (("head", "; sleep 25"), ("worker", "")):
        role = Role(name, docker_engine.image, entrypoint="sh", args=["-c", show + stays], resource=ROOM)
        role.env["SECRET"] = f"hush-{name}"
        made.append(role)
    cfg = {"queue": batch_queue, "shell": shell}
    app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("jobs", made), cfg, app_id=make_unique("jobs")))
    assert described(scheduler, app_id).state is AppState.SUCCEEDED
    for name, other in (("head", "worker"), ("worker", "head")):
        cursor, found = None, ""
        while "over\n" not in found.replace("echo over\n", ""):
            chunk = scheduler.read_logs(app_id, name, 0, cursor)
            cursor = chunk.cursor
            found += "".join(line.text for line in chunk.lines)
        definition = scheduler.describe_native(app_id).request.definition(0, 0)

        assert f"hush-{name}" in found
        assert f"hush-{other}" not in found
        assert next(iter(definition["parameters"].values()))[:200] not in found
        assert "LAUNCH_REQUEST" not in found


def test_nodes_without_a_shell_know_their_numbers(scheduler, launch) -> None:
    app_id = launch(
        ("head", "sleep", ["4"], 1),
        ("worker", "sh", ["-c", f"echo $LAUNCH_REPLICA_ID {macros.replica_id}; echo $LAUNCH_ROLE"], 2),
        shell=False,
    )
    found = described(scheduler, app_id)

    assert found.state is AppState.SUCCEEDED, found.msg
    assert [lines(scheduler, app_id, 2, "worker", k) for k in (0, 1)] == [["0 0", "worker"], ["1 1", "worker"]]
    assert scheduler.result(app_id) is None


@pytest.mark.parametrize(("code", "state"), [(0, AppState.SUCCEEDED), (3, AppState.FAILED)], ids=["ends", "fails"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [("true", {"rows": 3}), ("echo 2 >$LAUNCH_RESULT_PATH", 2)],
    ids=["alone", "both"],
)
def test_a_result_is_read_where_kubernetes_pod_operator_has_it(
    scheduler, launch, script, expected, code, state
) -> None:
    """An image of that operator moves unchanged; the launcher's own file comes first."""
    write = """mkdir -p /airflow/xcom; echo '{"rows": 3}' >/airflow/xcom/return.json"""
    app_id = launch(("main", "sh", ["-c", f"{write}; {script}; exit {code}"], 1))

    assert described(scheduler, app_id).state is state
    assert scheduler.result(app_id) == expected


def test_a_result_is_read_from_s3_where_the_program_has_put_it(scheduler, launch, batch_server) -> None:
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    s3 = boto3.client("s3", endpoint_url=batch_server.url, region_name=REGION, **keys)
    s3.create_bucket(Bucket="results")
    app_id = launch(("main", "sh", ["-c", "echo $LAUNCH_RESULT_S3"], 1), shell=False, result_prefix="s3://results/runs")
    described(scheduler, app_id)
    (address,) = lines(scheduler, app_id, 1)

    assert scheduler.result(app_id) is None
    bucket, _, key = address.removeprefix("s3://").partition("/")
    s3.put_object(Bucket=bucket, Key=key, Body=b'{"loss": 0.5}')
    assert scheduler.result(app_id) == {"loss": 0.5}


def denied(action: str) -> Any:
    return error(403, body={"__type": "AccessDeniedException", "message": f"not authorized to perform: {action}"})


def test_logs_that_may_not_be_read_are_reported_once_without_delay(scheduler, launch, batch_proxy: FaultProxy) -> None:
    batch_proxy.add(Fault(denied("logs:GetLogEvents"), "POST", r"^/$", times=None))
    app_id = launch(("main", "sh", ["-c", "echo hi; sleep 1"], 3))
    began = time.monotonic()
    with Follower(scheduler, app_id, poll_interval_s=0.5) as follower:
        gaps = [event.message for event in follower if isinstance(event, LogGap)]

    assert time.monotonic() - began < 15
    assert len(gaps) == 1
    assert "GetLogEvents" in gaps[0]


def test_the_log_is_read_in_the_region_to_which_it_goes(scheduler, launch, batch_proxy: FaultProxy) -> None:
    options = {"awslogs-region": "eu-central-1", "awslogs-group": "/aws/batch/job"}
    app_id = launch(
        ("main", "sh", ["-c", "echo hi; sleep 3"], 1),
        overlay={"logConfiguration": {"logDriver": "awslogs", "options": options}},
    )
    deadline = time.monotonic() + 30
    while not (scopes := [text for one in batch_proxy.matching("POST", "^/$") for _, text in one.headers]):
        assert time.monotonic() < deadline
        scheduler.describe(app_id)
        scheduler.read_logs(app_id, "main", 0)
        time.sleep(0.2)
    scheduler.cancel(app_id)

    assert any("/eu-central-1/logs/" in text for text in scopes)


def test_lines_that_go_elsewhere_are_given_up_with_the_reason(scheduler, launch) -> None:
    app_id = launch(
        ("main", "true", [], 1), overlay={"logConfiguration": {"logDriver": "splunk", "options": {"splunk-token": "x"}}}
    )
    with pytest.raises(NotImplementedError, match="splunk"):
        scheduler.read_logs(app_id, "main", 0)
    assert described(scheduler, app_id).state is AppState.SUCCEEDED
    assert scheduler.result(app_id) is None


@pytest.mark.parametrize("count", [1, 2], ids=["one job", "nodes"])
def test_lost_hosts_restart_the_app_as_often_as_its_role_allows(
    scheduler, batch_server, batch_queue, docker_engine, count
) -> None:
    """A later one ends it, although it has not used up a retry."""
    role = Role("main", docker_engine.image, entrypoint="sleep", args=["300"], num_replicas=count, resource=ROOM)
    role.max_disruptions = 1
    cfg = {"queue": batch_queue, "layout": "multi-node"} if count > 1 else {"queue": batch_queue}
    app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("jobs", [role]), cfg, app_id=make_unique("jobs")))
    for restarts in range(2):

        def runs(found: DescribeAppResponse, restarts: int = restarts) -> bool:
            replicas = found.roles_statuses[0].replicas
            return found.num_restarts == restarts and all(one.state is AppState.RUNNING for one in replicas)

        described(scheduler, app_id, runs)
        cached = scheduler._catalog.get(app_id)
        lost = cached.jobs[cached.attempt]["jobId"] + (f"#{count - 1}" if count > 1 else "")
        batch_server.control(lose_host=lost)
    found = described(scheduler, app_id)

    assert found.state is AppState.FAILED
    assert "preempted (Host EC2" in found.msg
    assert found.num_restarts == 1
