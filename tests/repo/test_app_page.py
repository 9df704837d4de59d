"""The page about apps matches the code."""

from __future__ import annotations

import re

import pytest

from airflow_provider_launch._task.checkpoint_dir import CHECKPOINT_DIR, TRY
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler
from airflow_provider_launch.schedulers.capability import Capability
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.docker.request import build_request as docker_request
from airflow_provider_launch.schedulers.docker.request import container_body
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.schedulers.kubernetes.manifests import job_body
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.request import build_request as kubernetes_request
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
from airflow_provider_launch.schedulers.local.leases import gpu_env
from airflow_provider_launch.schedulers.local.processes import MARKER
from airflow_provider_launch.schedulers.local.request import INHERITED
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.schedulers.slurm.scheduler import SlurmScheduler
from airflow_provider_launch.schedulers.spec_hash import LINEAGE_PARENT, LINEAGE_ROOT_PARENT
from airflow_provider_launch.specs import AppDef, RetryPolicy, Role, macros
from airflow_provider_launch.specs.named_resources_generic import NAMED_RESOURCES

SCHEDULERS = (LocalScheduler, DockerScheduler, KubernetesScheduler, AwsBatchScheduler, SlurmScheduler)


@pytest.fixture
def page(checkout) -> str:
    return (checkout / "docs" / "app.md").read_text(encoding="utf-8")


@pytest.fixture
def variables(page) -> set[str]:
    """The variables of the last table."""
    return set(re.findall(r"`([A-Z][A-Z0-9_<>]+)`", page.partition("## Environment of a replica")[2]))


def an_app(entrypoint: str = "env") -> AppDef:
    return AppDef("app", [Role("main", "", entrypoint=entrypoint, port_map={"web": 0})])


def as_on_the_page(names: set[str]) -> set[str]:
    return {"LAUNCH_PORT_<ROLE>_<NAME>" if name == "LAUNCH_PORT_MAIN_WEB" else name for name in names}


def given(backend: str, info) -> set[str]:
    """The variables of rank 0 in a request."""
    app = info.app
    app.roles[0].image = "image"
    if backend == "docker":
        request = docker_request(app, DockerOpts(), "app-1", {}, [])
        return {item.partition("=")[0] for item in container_body(request, request.roles[0], 0, 0, 0)["Env"]}
    request = kubernetes_request(app, KubernetesOpts(queue="team"), "app-1", {})
    containers = job_body(request, request.roles[0], 0)["spec"]["template"]["spec"]["containers"]
    return {item["name"] for item in containers[0]["env"]}


def test_every_variable_is_named_and_exists(tmp_path, variables, monkeypatch) -> None:
    """The page lists all variables, and only those that are set."""
    monkeypatch.setenv("LAUNCH_HOME", str(tmp_path))
    with Runner("docs") as runner:
        info = runner.dryrun(an_app(), "local", parent_run_id="p", app_id="app-1")
        handle = runner.schedule(info)
        runner.wait(handle, wait_interval=0.1, timeout=60)
        lines = [line.partition("=")[0] for line in runner.log_lines(handle, "main")]
        contained = [given(backend, info) for backend in ("docker", "kubernetes")]
    inherited = re.compile("|".join(name.replace("*", ".*") for name in INHERITED))
    # The supervisor uses the marker to find its own processes.
    local = {name for name in lines if not inherited.fullmatch(name)} - {MARKER}

    # In a container the directory of torchrun is removed with the container.
    common = as_on_the_page(local) - {"PET_LOG_DIR"}
    assert common == as_on_the_page(contained[0])
    lost = {"LAUNCH_DISRUPTIONS", "LAUNCH_PREEMPTIONS"}
    assert common | lost == as_on_the_page(contained[1])
    assert variables == as_on_the_page(local) | {
        *lost,
        *gpu_env(["0"]),
        LINEAGE_PARENT,
        LINEAGE_ROOT_PARENT,
        CHECKPOINT_DIR,
        TRY,
    }


def test_every_macro_is_named(page) -> None:
    texts = {value for name, value in vars(macros).items() if isinstance(value, str) and value.startswith("${")}

    assert set(re.findall(r"^\| `(\$\{\w+\})` \|", page, re.MULTILINE)) == texts


def test_the_dollars_are_as_the_page_shows() -> None:
    values = macros.Values(img_root="", app_id="a", replica_id="0", rank0_env="HOST")

    assert values.substitute("echo $$$$; echo $HOME; echo $$${rank0_env}") == "echo $$; echo $HOME; echo $HOST"


def test_who_offers_which_policy_and_mount_is_what_the_schedulers_declare(page) -> None:
    rows = re.findall(
        r"^\| `(\w+)\b.*?\| *(yes)? *\| *(yes)? *\| *(yes)? *\| *(yes)? *\| *(yes)? *\|$", page, re.MULTILINE
    )
    mounts = {"BindMount": "BIND_MOUNT", "VolumeMount": "VOLUME_MOUNT", "DeviceMount": "DEVICE_MOUNT"}
    needed = {**mounts, **{policy.value: f"{policy.value}_RETRY" for policy in RetryPolicy}}

    assert {name: said for name, *said in rows} == {
        name: ["yes" if Capability(needed[name]) in each.capabilities else "" for each in SCHEDULERS] for name in needed
    }


def test_every_size_is_named(page) -> None:
    assert all(f"`{name}`" in page for name in NAMED_RESOURCES)
