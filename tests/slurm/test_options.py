"""Each option of a launch reaches the job: one test for each option, with `scontrol show job`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_provider_launch.specs import AppState, Resource
from airflow_provider_launch.specs.errors import SchedulerRejectedError
from tests.engines.slurm import engine
from tests.engines.slurm.fixtures import own_port
from tests.slurm.conftest import Place

RUNS = "echo up; sleep 1"


def started(place: Place, job_of: str) -> dict[str, str]:
    """Return the fields of the job of an app that runs, as Slurm shows them."""
    place.written(job_of, "up")
    return shown(place, job_of)


def shown(place: Place, app_id: str) -> dict[str, str]:
    job = place.cluster.run("squeue", "-h", "-t", "all", f"--name={app_id}", "-o", "%A").split()[0]
    words = place.cluster.run("scontrol", "-d", "-o", "show", "job", job).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


# ---- what every cluster has ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_place() -> Iterator[Place]:
    """A cluster that these tests may change; n1 is fast, n2 has a reservation, n3 a partition."""
    # In addition to the cluster that `make_own_cluster` starts.
    with engine.own_cluster(own_port(27827), fake_gpus=4) as cluster:
        cluster.run("scontrol", "update", "nodename=n1", "availablefeatures=fast", "activefeatures=fast")
        reserve = ["reservation=ours", "users=root", "nodes=n2", "starttime=now", "duration=60"]
        cluster.run("scontrol", "create", *reserve)
        cluster.run("scontrol", "create", "partitionname=late", "nodes=n3", "maxtime=30")
        place = Place(cluster, cluster.dir / "root")
        yield place
        place.scheduler.close()


@pytest.mark.engine("slurmctld")
@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"constraint": "fast"}, {"Features": "fast", "NodeList": "n1"}),
        ({"reservation": "ours"}, {"Reservation": "ours", "NodeList": "n2"}),
        ({"partition": "late"}, {"Partition": "late", "NodeList": "n3"}),
        ({"partition": "late,debug", "nodelist": "n3"}, {"NodeList": "n3"}),
        ({"nodelist": "n3"}, {"ReqNodeList": "n3", "NodeList": "n3"}),
        ({"exclude": "n1,n2"}, {"ExcNodeList": "n[1-2]", "NodeList": "n3"}),
        ({"exclusive": True}, {"OverSubscribe": "NO", "NumCPUs": "64"}),
        ({"account": "research"}, {"Account": "research"}),
        ({"time_limit_s": 100, "grace_s": 10}, {"TimeLimit": "00:03:00"}),
        ({}, {"Requeue": "0", "NumCPUs": "1"}),
        ({"on_disruption": "retry"}, {"Requeue": "1"}),
        ({"overlay": {"nice": 77}}, {"Nice": "77"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_the_job_has_each_option(own_place, options, fields) -> None:
    app_id = own_place.start(own_place.sh(RUNS), **options)
    found = started(own_place, app_id)

    assert {name: found.get(name) for name in fields} == fields
    assert own_place.end(app_id).state is AppState.SUCCEEDED


@pytest.mark.engine("slurmctld")
def test_the_comment_of_the_job_ends_with_that_of_the_launch(own_place) -> None:
    app_id = own_place.start(own_place.sh(RUNS), comment="for Ada | 100 %")
    own_place.written(app_id, "up")
    comment = own_place.cluster.run("squeue", "-h", f"--name={app_id}", "-o", "%k")

    assert comment.strip().endswith(" for Ada | 100 %")


@pytest.mark.engine("slurmctld")
@pytest.mark.parametrize(("gpu_type", "mark"), [("large", "gpu:large:1(IDX:4)"), ("fake", "gpu:fake:1(IDX:0)")])
def test_gpus_have_the_type_that_was_asked_for(own_place, gpu_type, mark) -> None:
    """The program sees only the GPUs that it was given."""
    resource = Resource(cpu=1, gpu=1, memMB=64)
    role = own_place.sh(f"echo gpus $CUDA_VISIBLE_DEVICES; {RUNS}", resource=resource)
    app_id = own_place.start(role, gpu_type=gpu_type)
    found = started(own_place, app_id)
    own_place.end(app_id)

    # Slurm 22.05 has `gres:gpu:large:1`, 26.05 has `cpu=1,gres/gpu:large=1`.
    assert f"gpu:{gpu_type}" in found["TresPerTask"]
    assert found["GRES"] == mark
    assert len(next(own_place.scheduler.log_iter(app_id, "main")).split()[1].split(",")) == 1


@pytest.mark.engine("slurmctld")
@pytest.mark.parametrize("gpu_type", ["fake", None])
@pytest.mark.parametrize(("replicas", "nodes"), [(2, 1), (2, 2), (4, 1), (4, 2)])
def test_each_replica_has_a_gpu_of_its_own(own_place, gpu_type, replicas, nodes) -> None:
    """Even if several replicas share a node, where each would use the first GPU and pay for the others."""
    resource = Resource(cpu=1, gpu=1, memMB=64)
    role = own_place.sh("echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES", num_replicas=replicas, resource=resource)
    where = {"nodes": nodes, "ntasks-per-node": replicas // nodes}
    app_id = own_place.start(role, gpu_type=gpu_type, overlay=where)
    found = own_place.end(app_id)
    seen = [tuple(next(own_place.scheduler.log_iter(app_id, "main", k)).split()) for k in range(replicas)]

    assert found.state is AppState.SUCCEEDED
    assert len({node for node, *_ in seen}) == nodes
    assert all(len(gpus) == 1 and gpus[0].isdigit() for _, *gpus in seen), seen
    assert len(set(seen)) == replicas, seen


@pytest.mark.engine("slurmctld")
@pytest.mark.parametrize(
    ("overlay", "memory"),
    [
        ({"mem-per-cpu": "100M"}, ("MinMemoryCPU", "100M")),
        ({"mem": "2G"}, ("MinMemoryNode", "2G")),
        ({"mem-per-cpu": None, "mem": "300M"}, ("MinMemoryNode", "300M")),
    ],
    ids=str,
)
def test_an_overlay_concerns_the_step_of_the_job_too(own_place, overlay, memory) -> None:
    """A step that asks for more than its job has cannot be started."""
    role = own_place.sh(RUNS, resource=Resource(cpu=1, gpu=0, memMB=512))
    app_id = own_place.start(role, overlay=overlay)
    found = started(own_place, app_id)

    assert found.get(memory[0]) == memory[1]
    assert own_place.end(app_id).state is AppState.SUCCEEDED


@pytest.mark.engine("slurmctld")
@pytest.mark.parametrize(
    ("resource", "replicas"), [(Resource(cpu=1, gpu=0, memMB=70_000), 1), (Resource(cpu=1, gpu=0, memMB=64), 500)]
)
def test_an_app_that_no_partition_can_run_is_stuck(own_place, resource, replicas) -> None:
    """Slurm accepts a held job of any size; a job that cannot run is not an outage."""
    app_id = own_place.start(own_place.sh("true", resource=resource, num_replicas=replicas))
    deadline = time.monotonic() + 60
    while not (found := own_place.scheduler.describe(app_id)).is_stuck:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    own_place.scheduler.cancel(app_id)

    assert (found.state, found.msg.startswith("waits in the queue: ")) == (AppState.PENDING, True)


@pytest.mark.engine("slurmctld")
@pytest.mark.parametrize("options", [{"partition": "x"}, {"constraint": "x"}, {"reservation": "x"}, {"nodelist": "x"}])
def test_options_that_the_cluster_does_not_have_are_refused_at_the_launch(own_place, options) -> None:
    with pytest.raises(SchedulerRejectedError, match=r"(?i)invalid"):
        own_place.start(own_place.sh("true"), **options)


@pytest.mark.engine("slurmctld")
def test_cpus_and_memory_of_a_replica_are_those_of_a_task(own_place) -> None:
    role = own_place.sh(RUNS, num_replicas=2, resource=Resource(cpu=3, gpu=0, memMB=1000))
    app_id = own_place.start(role)
    found = started(own_place, app_id)

    assert (found["NumTasks"], found["CPUs/Task"], found["MinMemoryCPU"]) == ("2", "3", "334M")
    assert own_place.end(app_id).state is AppState.SUCCEEDED


@pytest.mark.engine("slurmctld")
def test_mail_is_sent_to_its_user_at_the_events_that_were_named(own_place) -> None:
    """Slurm itself sends it, by its `MailProg`."""
    app_id = own_place.start(own_place.sh(RUNS), mail_user="ada@example.com", mail_type="BEGIN,END")
    silent = own_place.start(own_place.sh(RUNS))
    own_place.end(app_id)
    own_place.end(silent)
    deadline = time.monotonic() + 60
    while len(mine := [line for line in own_place.cluster.mails() if app_id in line]) < 2:
        assert time.monotonic() < deadline, own_place.cluster.mails()
        time.sleep(0.5)

    assert ["Began" in mine[0], "Ended" in mine[1]] == [True, True]
    assert all(line.endswith(" ada@example.com") for line in mine)
    assert not any(silent in line for line in own_place.cluster.mails())


# ---- what a cluster with accounts has --------------------------------------------------------------------------------


@pytest.mark.engine("slurmdbd")
@pytest.mark.timeout(300)
def test_account_and_quality_of_service_are_those_of_the_launch(make_own_cluster) -> None:
    """And one that the user may not have is refused at the launch."""
    place = make_own_cluster(accounting=True)
    cluster = place.cluster
    for words in (
        ["add", "qos", "urgent"],
        ["add", "account", "research"],
        ["add", "user", "root", "account=research"],
        ["modify", "user", "root", "set", "qos+=urgent"],
    ):
        cluster.run("sacctmgr", "-i", *words)
    place.patiently(lambda: cluster.run("sbatch", "--test-only", "--qos=urgent", "--wrap=true"))
    app_id = place.start(place.sh(RUNS), account="research", qos="urgent")
    found = started(place, app_id)
    place.end(app_id)

    assert (found["Account"], found["QOS"]) == ("research", "urgent")
    for wrong in ({"account": "research", "qos": "none"}, {"account": "none"}):
        with pytest.raises(SchedulerRejectedError, match="Invalid"):
            place.start(place.sh("true"), **wrong)
