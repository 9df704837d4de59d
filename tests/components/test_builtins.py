"""The apps that builtin components build."""

from __future__ import annotations

import pytest

from airflow_provider_launch.components import dist, utils
from airflow_provider_launch.components.structured_arg import StructuredJArgument, StructuredNameArgument
from airflow_provider_launch.settings import IMAGE
from airflow_provider_launch.specs import NONE, AppDef, BindMount, Resource, Role, named_resources
from airflow_provider_launch.specs.check import check_app

R1 = Resource(cpu=1, gpu=0, memMB=1024)
MOUNT = ["type=bind", "src=/a", "dst=/b", "readonly"]


@pytest.fixture(autouse=True)
def _no_log_level(monkeypatch):
    monkeypatch.delenv("LOGLEVEL", raising=False)


@pytest.mark.parametrize(
    ("app", "name", "role"),
    [
        (utils.echo(), "echo", Role("echo", IMAGE, entrypoint="echo", args=["hello world"], resource=R1)),
        (
            utils.echo("a b", image="i", num_replicas=2),
            "echo",
            Role("echo", "i", entrypoint="echo", args=["a b"], num_replicas=2, resource=R1),
        ),
        (utils.touch("f"), "touch", Role("touch", IMAGE, entrypoint="touch", args=["f"], resource=R1)),
        (
            utils.sh("echo", "a b", "$X", env={"A": "1"}, max_retries=2, mounts=MOUNT),
            "sh",
            Role(
                "sh",
                IMAGE,
                entrypoint="sh",
                args=["-c", "echo 'a b' '$X'"],
                env={"LOGLEVEL": "WARNING", "A": "1"},
                max_retries=2,
                resource=R1,
                mounts=[BindMount("/a", "/b", read_only=True)],
            ),
        ),
        (
            utils.sh("a b", "c", entrypoint="/bin/x"),
            "sh",
            Role("sh", IMAGE, entrypoint="/bin/x", args=["a b", "c"], env={"LOGLEVEL": "WARNING"}, resource=R1),
        ),
        (
            utils.python("--x", "1", m="a.b"),
            "launch_utils_python",
            Role(
                "python",
                IMAGE,
                entrypoint="python",
                args=["-m", "a.b", "--x", "1"],
                env={"HYDRA_MAIN_MODULE": "a.b"},
                resource=R1,
            ),
        ),
        (
            utils.python(c="print(1)", name="n", h="gpu.small"),
            "n",
            Role("python", IMAGE, entrypoint="python", args=["-c", "print(1)"], resource=named_resources["gpu.small"]),
        ),
        (
            utils.python("y", script="s.py"),
            "launch_utils_python",
            Role("python", IMAGE, entrypoint="python", args=["s.py", "y"], resource=R1),
        ),
        (
            utils.binary("a", entrypoint="/bin/x", num_replicas=3, cpu=2),
            "launch_utils_binary",
            Role("binary", NONE, entrypoint="/bin/x", args=["a"], num_replicas=3, resource=Resource(2, 0, 1024)),
        ),
        (
            utils.copy("s3://a/b", "/c"),
            "copy",
            Role(
                "copy",
                IMAGE,
                entrypoint="python",
                args=["-m", "airflow_provider_launch.apps.copy", "--src", "s3://a/b", "--dst", "/c"],
                resource=R1,
            ),
        ),
        (
            utils.booth(1.0, -2.5, trial_idx=3, tracker_base="/t"),
            "booth",
            Role(
                "booth",
                IMAGE,
                entrypoint="python",
                args=[
                    *("-m", "airflow_provider_launch.apps.booth", "--x1=1.0", "--x2=-2.5", "--trial_idx=3"),
                    *("--tracker_base", "/t"),
                ],
                resource=R1,
            ),
        ),
    ],
)
def test_utils_make_small_apps(app, name, role):
    assert app == AppDef(name, [role])
    check_app(app)


@pytest.mark.parametrize("given", [{}, {"m": "a", "c": "b"}, {"m": "a", "script": "b"}])
def test_python_wants_exactly_one_program(given):
    with pytest.raises(ValueError, match="exactly one of"):
        utils.python(**given)


def test_dicts_of_the_caller_are_copied():
    env, metadata = {"A": "1"}, {"b": "2"}

    assert utils.sh("x", env=env).roles[0].env is not env
    app = dist.ddp(script="a.py", env=env, metadata=metadata)
    assert (env, metadata) == ({"A": "1"}, {"b": "2"})
    assert app.metadata == metadata
    assert app.metadata is not metadata


# ---- dist ------------------------------------------------------------------------------------------------------


def test_ddp_runs_torchrun_on_each_node():
    app = dist.ddp("--lr", "0 1", script="a/train.py", j="2x4", name="exp/run", cpu=3, gpu=1, memMB=5, max_retries=2)
    command = (
        "torchrun --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:$${LAUNCH_PORT_TRAIN_C10D} "
        "--rdzv_id '${app_id}' --nnodes 2 --nproc_per_node 4 --tee 3 --role '' a/train.py --lr '0 1'"
    )

    assert app == AppDef(
        "run",
        [
            Role(
                "train",
                IMAGE,
                min_replicas=2,
                entrypoint="bash",
                args=["-c", command],
                env={
                    "TORCHX_TRACKING_EXPERIMENT_NAME": "exp",
                    "TORCHX_TRACKING_RUN_NAME": "run",
                    "LOGLEVEL": "WARNING",
                },
                num_replicas=2,
                max_retries=2,
                resource=Resource(3, 1, 5),
                port_map={"c10d": 0},
            )
        ],
    )


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"j": "1x2"}, "--rdzv_endpoint localhost:0 "),
        ({"j": "4"}, "--nnodes 1 --nproc_per_node 4 "),
        ({"j": "1:3x2"}, "--nnodes 1:3 --nproc_per_node 2 "),
        ({"j": "2xgpu"}, "--nnodes 2 --nproc_per_node gpu "),
        ({"j": "auto"}, "--nnodes 1 --nproc_per_node auto "),
        ({"max_restarts": 3}, "--max_restarts 3 "),
        ({"local_ranks_filter": "0,1"}, "--local_ranks_filter 0,1 "),
        ({"j": "2x1", "rdzv_port": 4}, "--rdzv_endpoint $${${rank0_env}:=localhost}:4 "),
        ({"j": "2x1", "rdzv_port": 0}, "--rdzv_endpoint $${${rank0_env}:=localhost}:$${LAUNCH_PORT_TRAIN_C10D} "),
        ({"rdzv_conf": "a=b c"}, "torchrun --rdzv_backend c10d --rdzv_conf 'a=b c' --rdzv_endpoint "),
        ({"rdzv_backend": "static", "j": "2x1"}, "--role '' --node_rank '${replica_id}' train.py"),
        ({"tee": 1}, "--tee 1 "),
    ],
)
def test_ddp_takes_the_options_of_torchrun(given, part):
    assert part in dist.ddp(script="train.py", **given).roles[0].args[1]


def test_restarts_after_a_lost_node_can_be_bounded():
    assert dist.ddp(script="train.py").roles[0].max_disruptions is None
    assert dist.ddp(script="train.py", max_disruptions=5).roles[0].max_disruptions == 5
    assert dist.spmd(script="train.py", max_disruptions=0).roles[0].max_disruptions == 0


def test_ddp_takes_a_module_and_debugs():
    role = dist.ddp(m="a.b.main", debug=True, env={"LOGLEVEL": "INFO", "CUDA_LAUNCH_BLOCKING": "0"}).roles[0]

    assert role.name == "main"
    assert role.args[1].endswith(" --role '' -m a.b.main")
    assert role.env == {
        "TORCHX_TRACKING_EXPERIMENT_NAME": "default-experiment",
        "TORCHX_TRACKING_RUN_NAME": "main",
        "LOGLEVEL": "INFO",
        **dist._TORCH_DEBUG_FLAGS,
        "CUDA_LAUNCH_BLOCKING": "0",
    }


def test_elastic_apps_have_a_lowest_number_of_nodes():
    role = dist.ddp(script="a.py", j="2:5x1").roles[0]

    assert (role.min_replicas, role.num_replicas) == (2, 5)


@pytest.mark.parametrize(
    ("j", "expected"), [("2", (1, 1, 2, "1")), ("3x2", (3, 3, 2, "3")), ("1:2x3", (1, 2, 3, "1:2"))]
)
def test_nodes_and_processes_are_read(j, expected):
    assert dist.parse_nnodes(j) == expected


@pytest.mark.parametrize("j", ["", "x", "2x", "x2", "a", "1:2", "2:1x1", "0x1", "1x0", "1x2x3", "-1x2"])
def test_other_numbers_are_refused(j):
    with pytest.raises(ValueError, match="`-j"):
        dist.parse_nnodes(j)


@pytest.mark.parametrize(
    ("given", "text"), [({}, "No main module or script specified"), ({"m": "a", "script": "b"}, "Both main module and")]
)
def test_ddp_wants_one_program(given, text):
    with pytest.raises(ValueError, match=text):
        dist.ddp(**given)


def test_spmd_is_ddp_on_hosts_of_one_kind():
    named = dist.spmd("x", script="a.py", h="gpu.medium", j="3", name="e/r")

    assert named == dist.ddp("x", script="a.py", h="gpu.medium", j="3x2", name="e/r")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exp/run", ("exp", "run")),
        ("exp/", ("exp", "main")),
        ("/run", ("default-experiment", "run")),
        ("run", ("default-experiment", "run")),
        ("/", ("default-experiment", "main")),
    ],
)
def test_names_have_two_parts(name, expected):
    for program in ({"m": "a.main"}, {"script": "x/main.py"}):
        found = StructuredNameArgument.parse_from(name, **program)
        assert (found.experiment_name, found.run_name) == expected
        assert str(StructuredNameArgument(*expected)) == str(found)


@pytest.mark.parametrize(("h", "j", "expected"), [("gpu.large", "2", "2x4"), ("gpu.large", "2x4", "2x4")])
def test_one_process_per_gpu_is_the_default(h, j, expected):
    assert str(StructuredJArgument.parse_from(h, j)) == expected


def test_other_numbers_of_processes_are_kept_with_a_warning():
    with pytest.warns(UserWarning, match="has 4 GPUs"):
        assert str(StructuredJArgument.parse_from("gpu.large", "2x3")) == "2x3"
    assert str(StructuredJArgument.parse_from("cpu.small", "2x3")) == "2x3"
    with pytest.raises(ValueError, match=r"`cpu\.small` is not a GPU instance"):
        StructuredJArgument.parse_from("cpu.small", "2")
    with pytest.raises(ValueError, match="Invalid format for `-j "):
        StructuredJArgument.parse_from("gpu.large", "2x")
