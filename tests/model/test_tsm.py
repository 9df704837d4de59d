"""The older API: builders, session, and its exact texts."""

from __future__ import annotations

import time

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import (
    AppDef,
    AppState,
    AppStatus,
    ReplicaStatus,
    Resource,
    RetryPolicy,
    Role,
    RoleStatus,
    macros,
    tsm,
)
from airflow_provider_launch.specs.errors import SessionMismatchException
from tests.support.fake_scheduler import FakeEngine, FakeScheduler

SMALL, LARGE = Resource(1, 0, 512), Resource(8, 1, 4096)


def test_builders_give_the_model():
    container = tsm.Container("repo/x:1").require(SMALL).require(LARGE, "gpus").ports(web=80, data=0)
    trainer = (
        tsm.Role("trainer")
        .runs("python", "-m", "a", SEED="1")
        .on(container)
        .replicas(4)
        .with_retry_policy(RetryPolicy.REPLICA, max_retries=2)
    )
    app = tsm.Application("train").of(trainer)

    for scheduler, resource in (("gpus", LARGE), ("local", SMALL), (tsm.ALL, SMALL)):
        assert app.build(scheduler) == AppDef(
            "train",
            [
                Role(
                    "trainer",
                    "repo/x:1",
                    entrypoint="python",
                    args=["-m", "a"],
                    env={"SEED": "1"},
                    num_replicas=4,
                    max_retries=2,
                    retry_policy=RetryPolicy.REPLICA,
                    resource=resource,
                    port_map={"web": 80, "data": 0},
                )
            ],
        )


def test_a_container_without_a_resource_needs_nothing_and_none_is_refused():
    assert tsm.Role("r").runs("x").on(tsm.Container("i")).build().resource == tsm.NULL_RESOURCE
    with pytest.raises(ValueError, match="'r' has no container"):
        tsm.Role("r").runs("x").build()
    assert tsm.Container("i").require(SMALL).resource_on("any") is not SMALL


@pytest.mark.parametrize(
    ("role", "command"),
    [
        (
            tsm.ElasticRole("t", nproc_per_node=2, max_restarts=3).runs("train.py", "--lr", "0 1").replicas(2),
            (
                "torchrun --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:29500 --rdzv_id '${app_id}' "
                "--nnodes 2 --role t --nproc_per_node 2 --max_restarts 3 '${img_root}/train.py' --lr '0 1'"
            ),
        ),
        (
            tsm.ElasticRole(
                "t", nnodes="1:3", rdzv_backend="etcd", rdzv_endpoint="e:1", standalone=True, no_python=False
            ).runs("/abs/train.py"),
            (
                "torchrun --rdzv_backend etcd --rdzv_endpoint e:1 --rdzv_id '${app_id}' --nnodes 1:3 --role t "
                "--standalone /abs/train.py"
            ),
        ),
        (
            tsm.ElasticRole("t").runs(f"{macros.img_root}/a.py"),
            (
                "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id '${app_id}' --nnodes 1 --role t "
                "'${img_root}/a.py'"
            ),
        ),
    ],
)
def test_an_elastic_role_runs_torchrun(role, command):
    built = role.on(tsm.Container("i")).build()

    assert (built.entrypoint, built.args) == ("bash", ["-c", command])


def test_run_configs_are_mappings():
    config = tsm.RunConfig({"queue": "a"})
    config.set("tags", ["x"])

    assert (config.get("tags"), config.get("unknown")) == (["x"], None)
    assert repr(config) == "{'queue': 'a', 'tags': ['x']}"
    assert {**config} == {"queue": "a", "tags": ["x"]}
    assert repr(tsm.RunConfig()) == "{}"


# ---- session -----------------------------------------------------------------------------------------------------


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def session(engine):
    runner = Runner("mine", {"fake": lambda name, **kwargs: FakeScheduler(name, engine)}, check_session=True)
    with tsm.Session("mine", runner) as session:
        yield session


APP = tsm.Application("app").of(tsm.Role("w").runs("x").on(tsm.Container("i").require(SMALL)))


def test_a_session_launches_and_watches(session):
    info = session.dryrun(APP, cfg=tsm.RunConfig({"queue": "gpu"}))
    first = session.schedule(info)
    second = session.run(APP, "fake")

    assert session.name() == "mine"
    assert info.cfg["queue"] == "gpu"
    assert first.startswith("fake://mine/")
    assert set(session.list()) == {first, second}
    assert session.list()[first].roles[0].entrypoint == "x"
    assert session.scheduler_backends() == ["fake"]
    assert list(session.run_opts()) == ["fake"]
    assert session.status(first).state is AppState.PENDING
    assert session.describe(first).name == "app"
    session.stop(first)
    assert session.wait(first, 0.01).state is AppState.CANCELLED


def test_a_session_changes_only_its_own_apps(session):
    handle = session.run(APP).replace("mine", "other")

    for change in (session.stop, lambda handle: session.log_lines(handle, "w")):
        with pytest.raises(SessionMismatchException):
            change(handle)
    assert session.status(handle) is not None


@pytest.mark.engine("local")
def test_lines_are_followed_unless_an_end_is_given(tmp_path):
    runner = Runner("mine", scheduler_params={"root": str(tmp_path)}, check_session=True)
    app = tsm.Application("app").of(tsm.Role("w").runs("sh", "-c", "echo a; sleep 1; echo b").on(tsm.Container("")))
    with tsm.Session("mine", runner) as session:
        handle = session.run(app)
        started = time.monotonic()

        assert [*session.log_lines(handle, "w")] == ["a\n", "b\n"]

        assert time.monotonic() - started < 60
        assert session.wait(handle, 0.1).state is AppState.SUCCEEDED


# ---- texts -------------------------------------------------------------------------------------------------------


def test_the_text_of_a_status_is_that_of_tsm_to_the_byte():
    failed = tsm.RoleReplicaStatus(
        0, AppState.FAILED, "trainer", exit_code=137, end_time=1700000000, error_msg="out of memory"
    )
    running = tsm.RoleReplicaStatus(1, AppState.RUNNING, "trainer")
    status = AppStatus(AppState.FAILED, 1, "node lost", roles=[RoleStatus("trainer", [failed, running])])

    assert failed == ReplicaStatus(
        0, AppState.FAILED, "trainer", "", exit_code=137, end_time=1700000000, error_msg="out of memory"
    )
    assert status.get_formatted_str(AppState.FAILED.mask) == (
        "\nState: FAILED ; Num Restarts: 1\nMsg: node lost\nReplicas: \n- Role: [trainer]:\n\n- [trainer:0]\n"
        "  Timestamp: 1700000000; Exit Code: 137\n  State: FAILED\n  Error Message: out of memory\n\n\n"
    )
    assert "- [trainer:1]\n  Timestamp: None; Exit Code: None\n  State: RUNNING\n" in status.get_formatted_str()


def test_names_that_were_dropped_do_no_harm():
    with pytest.warns(DeprecationWarning, match="base_img_root"):
        text = macros.base_img_root
    with pytest.warns(DeprecationWarning, match="base_image"):
        role = Role("r", "i", entrypoint=f"{text}/x", args=[f"{text}/y"], base_image="b")

    assert role == Role("r", "i", entrypoint=f"{text}/x", args=[f"{text}/y"])
    assert role.base_image is None
    values = macros.Values(img_root="/root", app_id="a", replica_id="0", rank0_env="R")
    assert values.apply(role).args == ["/root/y"]
    assert Role("r", "i", base_image=None) == Role("r", "i")
