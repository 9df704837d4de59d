"""Each scheduler fills in addresses, services and the variables of PyTorch; built without an engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.request import build_request as aws_batch
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.docker.request import build_request as docker
from airflow_provider_launch.schedulers.docker.request import container_body
from airflow_provider_launch.schedulers.kubernetes.manifests import job_body
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.request import build_request as kubernetes
from airflow_provider_launch.schedulers.kubernetes.request import packed, unpacked
from airflow_provider_launch.schedulers.local import leases
from airflow_provider_launch.schedulers.local.options import LocalOpts
from airflow_provider_launch.schedulers.local.request import build_request as local
from airflow_provider_launch.schedulers.local.request import format_request
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.schedulers.slurm.request import build_request as slurm
from airflow_provider_launch.schedulers.slurm.request import format_request as format_slurm
from airflow_provider_launch.schedulers.slurm.script import app_files
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.specs import AppDef, Resource, Role, macros
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.torch_env import with_torch_env

ADDRESS = f"{macros.rank0_host}:{macros.port('train er', 'torch')}:{macros.port('train er', 'fixed')}"


def app() -> AppDef:
    trainer = Role(
        "train er",
        "repo/train:1",
        entrypoint="python",
        args=[ADDRESS, "$${rank0_host}"],
        num_replicas=2,
        port_map={"fixed": 29500},
        resource=Resource(1, 0, 64),
        torch_env=True,
    )
    service = Role("ps", "repo/train:1", entrypoint="x", resource=Resource(1, 0, 64), service=True)
    return with_torch_env(AppDef("x", [trainer, service]))


def test_on_docker() -> None:
    request = docker(app(), DockerOpts(), "app-1", {}, [])
    body = container_body(request, request.roles[0], 1, 0, 0)
    env = dict(item.split("=", 1) for item in body["Env"])

    assert body["Cmd"] == [f"{env['TORCHX_RANK0_HOST']}:{env['LAUNCH_PORT_TRAIN_ER_TORCH']}:29500", "${rank0_host}"]
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("1", "2", env["TORCHX_RANK0_HOST"])
    assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == env["LAUNCH_PORT_TRAIN_ER_TORCH"]
    assert json.loads(body["Labels"][Label.PLAN])["services"] == ["ps"]


def test_on_kubernetes() -> None:
    """The host differs in each attempt."""
    request = unpacked(packed(kubernetes(app(), KubernetesOpts(), "app-1", {})))
    hosts = set()
    for attempt in range(2):
        container = job_body(request, request.roles[0], attempt)["spec"]["template"]["spec"]["containers"][0]
        env = {item["name"]: item.get("value") for item in container["env"]}
        host, port = env["TORCHX_RANK0_HOST"], env["LAUNCH_PORT_TRAIN_ER_TORCH"]
        hosts.add(host)

        assert container["args"] == [f"{host}:{port}:29500", "$${rank0_host}"]
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (host, port)
        assert (env["RANK"], env["NODE_RANK"]) == ("$(LAUNCH_REPLICA_ID)", "$(LAUNCH_REPLICA_ID)")
    assert len(hosts) == 2
    plan = json.loads(job_body(request, request.roles[0], 0)["metadata"]["annotations"]["launch.io/plan"])
    assert plan["services"] == [request.roles[1].slug]


def test_on_slurm() -> None:
    """The script of the job knows host and ports, and writes them into the variables of the replica."""
    request = slurm(app(), SlurmOpts(), "app-1", {})
    files = app_files(request, "i")
    role = files["role-0.sh"].replace("''", "")

    assert 'export MASTER_ADDR="$TORCHX_RANK0_HOST"\n' in role
    assert 'export MASTER_PORT="$LAUNCH_PORT_TRAIN_ER_TORCH"\n' in role
    assert 'export RANK="$launch_k"\n' in role
    address = '"$TORCHX_RANK0_HOST":"$LAUNCH_PORT_TRAIN_ER_TORCH":"$LAUNCH_PORT_TRAIN_ER_FIXED"'
    assert f"set -- python {address} '${{rank0_host}}'\n" in role
    assert "launch_services=1\n" in files["plan"]
    assert "<rank 0>:<LAUNCH_PORT_TRAIN_ER_TORCH>:29500" in format_slurm(request)


def test_on_aws_batch() -> None:
    request = aws_batch(app(), AwsBatchOpts(queue="q"), "app-1", {})
    assert request.layout == "multi-node"
    container = request.definition(0, 0)["nodeProperties"]["nodeRangeProperties"][0]["container"]
    script, env = container["command"][2], {item["name"]: item["value"] for item in container["environment"]}
    port = env["MASTER_PORT"]

    assert 'export MASTER_ADDR="$TORCHX_RANK0_HOST"\n' in script
    assert 'export RANK="$i"\n' in script
    assert f"set -- \"$TORCHX_RANK0_HOST\":{port}:29500 '${{rank0_host}}'\n" in script
    assert (env["WORLD_SIZE"], env["LAUNCH_PORT_TRAIN_ER_TORCH"]) == ("2", port)


def test_on_one_machine_of_aws_batch() -> None:
    one = app()
    one.roles = one.roles[:1]
    one.roles[0].num_replicas = 1
    request = aws_batch(one, AwsBatchOpts(queue="q"), "app-1", {})
    env = {item["name"]: item["value"] for item in request.definition(0, 0)["containerProperties"]["environment"]}

    assert request.layout == "single"
    assert (env["MASTER_ADDR"], env["RANK"]) == ("localhost", "0")


@pytest.mark.parametrize("how", [{"shell": False}, {"layout": "array"}])
def test_aws_batch_refuses_what_it_cannot_fill_in(how: dict[str, Any]) -> None:
    one = app()
    one.roles = one.roles[:1]
    with pytest.raises((InvalidAppError, UnsupportedError), match="torch_env"):
        aws_batch(one, AwsBatchOpts(queue="q", **how), "app-1", {})


def test_on_local_processes(tmp_path) -> None:
    """The supervisor chooses the ports, so the request has marks for them."""
    one = app()
    for role in one.roles:
        role.image = str(tmp_path)
    request = local(one, LocalOpts(), "app-1", {}, [])
    replica = request.roles[0].replicas[1]
    ports = {"LAUNCH_PORT_TRAIN_ER_TORCH": 20001, "LAUNCH_PORT_TRAIN_ER_FIXED": 29500}

    assert [leases.with_ports(arg, ports) for arg in replica.args] == ["localhost:20001:29500", "${rank0_host}"]
    assert leases.with_ports(replica.env["MASTER_PORT"], ports) == "20001"
    assert (replica.env["RANK"], replica.env["MASTER_ADDR"]) == ("1", "localhost")
    assert "MASTER_PORT='<LAUNCH_PORT_TRAIN_ER_TORCH>'" in format_request(request)
    assert "\0" not in format_request(request)
    assert [role.service for role in request.roles] == [False, True]


def test_another_python_environment_on_local_processes(tmp_path) -> None:
    """Airflow's Python rarely has torch, which takes 5 GB."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    one = AppDef("x", [Role("r", str(tmp_path), entrypoint="torchrun")])
    env = str(tmp_path / "venv")
    role = local(one, LocalOpts(python_env=env), "app-1", {"PATH": "/usr/bin"}, []).roles[0]

    assert role.env["PATH"].split(":")[0] == f"{env}/bin"
    assert role.env["VIRTUAL_ENV"] == env
    with pytest.raises(InvalidAppError, match=r"option python_env: .*has no directory 'bin'"):
        local(one, LocalOpts(python_env=str(tmp_path)), "app-1", {}, [])


def test_the_option_does_not_change_the_hash_of_apps_without_it(tmp_path) -> None:
    one = AppDef("x", [Role("r", "/", entrypoint="true")])

    assert local(one, LocalOpts(), "app-1", {}, []).spec_hash == "bf60387501de0601"


# ---- disruptions -------------------------------------------------------------------------------------------------


def role(name: str = "trainer", **how: Any) -> Role:
    return Role(name, "repo/train:1", entrypoint="x", resource=Resource(1, 0, 64), **how)


def kubernetes_rule(*roles: Role, **options: Any) -> str:
    request = unpacked(packed(kubernetes(AppDef("x", [*roles]), KubernetesOpts(**options), "app-1", {})))
    rules = job_body(request, request.roles[0], 0)["spec"]["podFailurePolicy"]["rules"]
    return str(rules[0]["action"])


@pytest.mark.parametrize(
    ("bound", "option", "action"),
    [
        (None, "retry", "Ignore"),
        (None, "fail", "FailJob"),
        (0, "retry", "FailJob"),
        (2, "retry", "FailJob"),
        (2, "fail", "FailJob"),
    ],
)
def test_a_job_of_kubernetes_fails_at_a_disruption_that_must_be_counted(bound, option, action) -> None:
    assert kubernetes_rule(role(max_disruptions=bound), on_disruption=option) == action


def test_kubernetes_refuses_a_bound_next_to_retries_of_replicas() -> None:
    with pytest.raises(UnsupportedError, match=r"role 'trainer': max_disruptions restarts the whole app"):
        kubernetes_rule(role(max_disruptions=1, max_retries=1, retry_policy="REPLICA"))


@pytest.mark.parametrize(
    ("bounds", "option", "requeue", "bound"),
    [
        ([None, None], "fail", "0", "''"),
        ([None, None], "retry", "1", "''"),
        ([None, 2], "fail", "1", "2"),
        ([3, 2], "fail", "1", "2"),
        ([3, 0], "retry", "0", "0"),
    ],
)
def test_slurm_puts_the_job_back_as_often_as_each_role_allows(bounds, option, requeue, bound) -> None:
    roles = [role(f"r{n}", max_disruptions=each) for n, each in enumerate(bounds)]
    request = slurm(AppDef("x", roles), SlurmOpts(on_disruption=option), "app-1", {})
    plan = app_files(request, "i")["plan"]

    assert f"\nlaunch_requeue={requeue}\n" in plan
    assert f"\nlaunch_max_disruptions={bound}\n" in plan
    assert ("--requeue" in request.components[0]) is (requeue == "1")


@pytest.mark.parametrize(
    ("bound", "option", "words"),
    [(1, "fail", r"role 'a': max_disruptions is not offered"), (None, "retry", r"option on_disruption='retry' is not")],
)
def test_slurm_refuses_restarts_of_a_heterogeneous_job(bound, option, words) -> None:
    """After the loss of a node only its component is put back, and the app has failed."""
    other = role("b")
    other.resource = Resource(2, 0, 64)
    app = AppDef("x", [role("a", max_disruptions=bound), other])
    with pytest.raises(UnsupportedError, match=words):
        slurm(app, SlurmOpts(on_disruption=option), "app-1", {})


@pytest.mark.parametrize(("bound", "attempts", "rules"), [(None, 10, 2), (0, 1, 0), (1, 2, 2), (9, 10, 2)])
def test_aws_batch_has_an_attempt_for_each_loss_of_a_host(bound, attempts, rules) -> None:
    request = aws_batch(AppDef("x", [role(max_disruptions=bound)]), AwsBatchOpts(queue="q"), "app-1", {})
    strategy = request.definition(0, 0)["retryStrategy"]

    assert (strategy["attempts"], len(strategy.get("evaluateOnExit", []))) == (attempts, rules)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"max_disruptions": 10}, "more than the 9"),
        ({"max_disruptions": 1, "max_retries": 1}, "max_retries=1 is not offered by 'aws_batch'"),
    ],
)
def test_aws_batch_refuses_a_bound_that_it_cannot_count(how, words) -> None:
    with pytest.raises(UnsupportedError, match=words):
        aws_batch(AppDef("x", [role(**how)]), AwsBatchOpts(queue="q"), "app-1", {})


def test_a_bound_is_part_of_the_app_only_if_it_is_set() -> None:
    """Apps that run keep their hash when the launcher is upgraded."""
    hashes = [spec_hash(AppDef("x", [role(max_disruptions=bound)]), {}) for bound in (None, 0, 1)]

    assert len({*hashes}) == 3
    assert "max_disruptions" not in app_to_dict(AppDef("x", [role()]))["roles"][0]
