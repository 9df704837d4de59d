"""The request bodies of an app: no engine is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.naming import Label, alias, container_name
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.docker.request import (
    DockerRequest,
    build_request,
    container_body,
    format_request,
    mark_body,
    record_body,
    refuse_broken_overlays,
    request_from,
)
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler
from airflow_provider_launch.specs import (
    AppDef,
    BindMount,
    DeviceMount,
    InvalidAppError,
    Resource,
    RetryPolicy,
    Role,
    UnsupportedError,
    VolumeMount,
    macros,
)
from airflow_provider_launch.specs.overlays import DEL, set_overlay


def role(name: str = "main", **fields: Any) -> Role:
    return Role(name, **{"image": "repo/image:1", "entrypoint": "run", **fields})


def request(
    *roles: Role, environ: dict[str, str] | None = None, gpus: tuple[str, ...] = (), **opts: Any
) -> DockerRequest:
    return build_request(AppDef("app", list(roles)), DockerOpts(**opts), "app-1", environ or {}, gpus)


def body(*roles: Role, k: int = 0, **how: Any) -> dict[str, Any]:
    made = request(*roles, **how)
    return container_body(made, made.roles[0], k, 0, 0)


def test_body_of_a_plain_role() -> None:
    found = body(role(args=["--id", macros.replica_id], env={"A": "1"}), k=0, network="launch")
    env = dict(item.split("=", 1) for item in found.pop("Env"))

    assert found == {
        "Image": "repo/image:1",
        "Hostname": "app-1-main-0",
        "StopTimeout": 10,
        "HostConfig": {
            "NetworkMode": "launch",
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
            "Init": True,
            "Privileged": False,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "500m", "max-file": "3"}},
        },
        "Entrypoint": ["run"],
        "Cmd": ["--id", "0"],
        "Labels": {
            "launch.io/managed": "true",
            "launch.io/kind": "replica",
            "launch.io/app-id": "app-1",
            "launch.io/spec-hash": found["Labels"]["launch.io/spec-hash"],
            "launch.io/plan": '{"roles":[["main",1,"APPLICATION",0]],"time_limit_s":null}',
            "launch.io/name": "app-1-main-0",
            "launch.io/role": "main",
            "launch.io/replica": "0",
            "launch.io/app-attempt": "0",
            "launch.io/attempt": "0",
            # Labels that are not set are inherited from the image.
            **dict.fromkeys(Label.NOTES, ""),
        },
        "NetworkingConfig": {"EndpointsConfig": {"launch": {"Aliases": ["app-1-main-0"]}}},
    }
    assert env["A"] == "1"
    assert env["TORCHX_RANK0_HOST"] == "app-1-main-0"
    assert (env["LAUNCH_ROLE"], env["LAUNCH_REPLICA_ID"], env["LAUNCH_ATTEMPT"]) == ("main", "0", "0")


def test_fractions_of_a_cpu_and_reservations_reach_the_body() -> None:
    host = body(role(resource=Resource(cpu="250m", gpu=0, memMB=256, cpu_request=0.1, memMB_request=64)))["HostConfig"]

    assert (host["NanoCpus"], host["CpuShares"]) == (250_000_000, 103)
    assert (host["Memory"], host["MemoryReservation"]) == (256 * 1024**2, 64 * 1024**2)
    assert body(role(resource=Resource(0.1 + 0.2, 0, 1)))["HostConfig"]["NanoCpus"] == 300_000_000
    with pytest.raises(InvalidAppError, match=r"'main': resource.cpu=0.005 is less than 0.01"):
        request(role(resource=Resource(0.005, 0, 1)))


def test_resources_mounts_and_devices_reach_the_body() -> None:
    host = body(
        role(
            resource=Resource(cpu=2, gpu=0, memMB=256, devices={"vpc.amazonaws.com/efa": 1}),
            mounts=[
                BindMount("/data", "/in", read_only=True),
                VolumeMount("cache", "/cache"),
                DeviceMount("/dev/fuse", "/dev/fuse", permissions="rw"),
            ],
        ),
        shm_size_mb=128,
        ulimits={"nofile": "1024:4096", "core": "0"},
        extra_hosts={"db": "10.0.0.1"},
    )["HostConfig"]

    assert (host["NanoCpus"], host["Memory"], host["ShmSize"]) == (2_000_000_000, 256 * 2**20, 128 * 2**20)
    assert host["Mounts"] == [
        {"Type": "bind", "Source": "/data", "Target": "/in", "ReadOnly": True},
        {"Type": "volume", "Source": "cache", "Target": "/cache", "ReadOnly": False},
    ]
    assert [(d["PathOnHost"], d["CgroupPermissions"]) for d in host["Devices"]] == [
        ("/dev/fuse", "rw"),
        ("/dev/infiniband/uverbs0", "rwm"),
    ]
    assert host["Ulimits"] == [
        {"Name": "nofile", "Soft": 1024, "Hard": 4096},
        {"Name": "core", "Soft": 0, "Hard": 0},
    ]
    assert host["ExtraHosts"] == ["db:10.0.0.1"]


def test_chosen_ports_differ_from_fixed_ones_and_are_reported_to_all() -> None:
    made = request(role("a", port_map={"x": 0, "y": 20000}), role("b", port_map={"x": 0}))

    assert made.ports == {"LAUNCH_PORT_A_X": 20001, "LAUNCH_PORT_A_Y": 20000, "LAUNCH_PORT_B_X": 20002}
    for each in made.roles:
        assert "LAUNCH_PORT_B_X=20002" in container_body(made, each, 0, 0, 0)["Env"]


def test_variables_of_the_launcher_are_copied_on_demand_and_never_airflows() -> None:
    environ = {"HF_HOME": "/m", "AIRFLOW__CORE__FERNET_KEY": "s", "OTHER": "o"}
    env = body(role(env={"HF_HOME": "own"}), environ=environ, copy_env=["HF_*", "AIRFLOW*"])["Env"]

    assert "HF_HOME=own" in env
    assert not any("FERNET" in item or "OTHER" in item for item in env)


def test_a_single_replica_needs_no_network_with_names() -> None:
    assert request(role()).network == "bridge"
    assert request(role(), role("other")).network == "launch"
    assert request(role(num_replicas=2)).network == "launch"
    assert request(role(), network="launch").network == "launch"
    assert "NetworkingConfig" not in body(role())


def test_a_request_survives_json() -> None:
    made = request(role(args=["${HOME}", "naïve\n"]), network="app")

    assert request_from(json.loads(json.dumps(made.to_json()))) == made


def test_what_is_shown_is_what_is_sent_without_secrets() -> None:
    made = request(role(env={"API_TOKEN": "hush", "LEVEL": "info"}, num_replicas=5))
    text = format_request(made)

    assert "hush" not in text
    assert '"LEVEL=info"' in text
    assert "POST /containers/create?name=app-1-main-0" in text
    assert "and 4 more replicas" in text


@pytest.mark.parametrize(
    "image",
    [
        "Upper",
        "UPPER/Case:1",
        "reg/Upper",
        "https://reg/x:1",
        "a b",
        "x\n",
        "a//b",
        "a..b",
        "x:",
        "-x",
        "reg.x/Y",
        "x@sha256:1",
    ],
)
def test_an_invalid_image_name_is_refused(image: str) -> None:
    """Newer engines respond as for a missing image, which a task would wait for."""
    with pytest.raises(InvalidAppError, match=r"role 'main': image '.*' is not a valid image name; write name:tag"):
        request(role(image=image))


@pytest.mark.parametrize(
    "image",
    [
        "busybox", "a/b_c__d-e--f.g", "reg/x:1", "localhost/x", "localhost:5000/a/b:T", "Reg.example.com:443/a:1_.-",
        "[::1]:5000/a", "127.0.0.1:1/a:none", f"a@sha256:{'b' * 64}", f"a:1@sha256:{'b' * 64}", f"sha256:{'a' * 64}",
        "0123456789ab", "MYHOST/x:1", "myHost/a/b",
    ],
)  # fmt: skip
def test_a_valid_image_name_is_sent_unchanged(image: str) -> None:
    assert request(role(image=image)).roles[0].body["Image"] == image


def test_names_distinguish_attempts_and_hosts_do_not() -> None:
    names = [container_name("app", "r", 0, a, n) for a in range(2) for n in range(2)]

    assert names == ["app-r-0", "app-r-0-r1", "app-r-0-a1", "app-r-0-a1-r1"]
    assert alias("App_1", "r.x", 3) == "app-1-r-x-3"
    assert len(alias("a" * 100, "r", 3)) <= 63
    assert alias("a" * 100, "r", 3) != alias("a" * 100, "r", 4)


@pytest.mark.parametrize(
    ("roles", "how", "words"),
    [
        ([role(resource=Resource(1, 2, 3))], {"gpus": ("0",)}, ["main", "resource.gpu=2", "gpus"]),
        (
            [role(resource=Resource(cpu=1, gpu=0, memMB=1, devices={"quantum": 1}))],
            {},
            ["main", "quantum", "DeviceMount"],
        ),
        ([role("a b"), role("a-b")], {}, ["a b", "a-b", "rename"]),
        ([role(num_replicas=2, args=[macros.rank0_env])], {"network": "none"}, ["main", "rank0_env", "launch"]),
        ([role(port_map={"x": 0})], {"network": "host"}, ["main", "port_map", "host"]),
        ([role()], {"ulimits": {"nofile": "many"}}, ["nofile", "many", "1024:4096"]),
        ([role("a.b", port_map={"x": 1}), role("a-b", port_map={"x": 1})], {}, ["LAUNCH_PORT_A_B_X"]),
    ],
)
def test_requests_that_cannot_be_kept_are_refused(roles: list[Role], how: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidAppError) as caught:
        request(*roles, **how)

    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("app_id", ["host", "none", "launch"])
def test_an_app_named_like_a_known_network_cannot_have_it_for_itself(app_id: str) -> None:
    with pytest.raises(InvalidAppError, match=f"'{app_id}' cannot have its own network.*choose another id"):
        build_request(AppDef("app", [role()]), DockerOpts(network="app"), app_id, {}, ())


@pytest.mark.parametrize(
    ("refused", "error", "words"),
    [
        (role(image=""), InvalidAppError, ["main", "image"]),
        (
            role(max_retries=1, retry_policy=RetryPolicy.ROLE),
            UnsupportedError,
            ["main", "ROLE", "docker", "REPLICA or APPLICATION"],
        ),
    ],
)
def test_missing_capabilities_are_refused_at_dry_run(
    refused: Role, error: type[InvalidAppError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        DockerScheduler("test").submit_dryrun(AppDef("app", [refused]), {})

    assert all(word in str(caught.value) for word in words)


def test_every_container_sets_every_label_of_ours() -> None:
    ours = {value for value in vars(Label).values() if isinstance(value, str) and value.startswith("launch.io/")}
    made = request(role())

    for found in (record_body(made), container_body(made, made.roles[0], 0, 0, 0), mark_body("image", "app", "cancel")):
        assert ours <= found["Labels"].keys()


def test_a_thousand_replicas_are_a_short_request() -> None:
    made = request(role(args=["x" * 1000], num_replicas=1000))

    assert len(json.dumps(made.to_json())) < 10_000


def test_containers_carry_the_task_as_other_operators_label_it_and_the_labels_of_the_user() -> None:
    owner = {"dag_id": "etl", "task_id": "train", "run_id": "manual__2026-01-01T00:00:00+00:00", "try_number": 2}
    app = AppDef("app", [role()], metadata={"airflow": owner})
    given = build_request(app, DockerOpts(labels={"team": "a b", "dag_id": "mine"}), "app-1", {}, [])
    for body in (record_body(given), container_body(given, given.roles[0], 0, 0, 0)):
        labels = body["Labels"]

        assert (labels["task_id"], labels["run_id"], labels["try_number"]) == ("train", owner["run_id"], "2")
        assert (labels["team"], labels["dag_id"]) == ("a b", "mine")
    with pytest.raises(InvalidAppError, match=r"launch\.io/managed"):
        request(role(), labels={"launch.io/managed": "no"})


@pytest.mark.parametrize(
    ("network", "hostname"), [("launch", "app-1-main-1"), ("bridge", "app-1-main-1"), ("host", None)]
)
def test_the_host_name_of_a_replica_is_the_name_by_which_others_find_it(network: str, hostname: str | None) -> None:
    assert body(role(num_replicas=2), k=1, network=network).get("Hostname") == hostname


def test_options_differ_by_role() -> None:
    made = request(
        role("head"), role("worker"), user="1", shm_size_mb=64, by_role={"worker": {"user": "2", "shmSizeMb": 128}}
    )
    head, worker = (container_body(made, each, 0, 0, 0) for each in made.roles)

    assert (head["User"], worker["User"]) == ("1", "2")
    assert (head["HostConfig"]["ShmSize"], worker["HostConfig"]["ShmSize"]) == (64 * 1024**2, 128 * 1024**2)
    with pytest.raises(InvalidAppError, match="option by_role: role 'head' has 'network', which applies to the whole"):
        request(role("head"), by_role={"head": {"network": "none"}})


def test_overlays_differ_by_role() -> None:
    """That of the launch first, or of `by_role` instead of it, then that of the role."""
    patched = role("patched")
    set_overlay(patched, "docker", "Container", {"HostConfig": {"CapAdd": ["SYS_PTRACE"]}, "Tty": True})
    made = request(
        role("head"),
        role("worker"),
        patched,
        overlay={"Tty": False, "HostConfig": {"CapAdd": ["NET_ADMIN"], "Dns": ["10.0.0.10"]}},
        by_role={"worker": {"overlay": {DEL("Hostname"): None, "HostConfig": {"Tmpfs": {"/cache": "size=${app_id}"}}}}},
    )
    head, worker, last = (container_body(made, each, 0, 0, 0) for each in made.roles)

    assert (head["Tty"], last["Tty"], "Tty" in worker) == (False, True, False)
    assert head["HostConfig"]["CapAdd"] == ["NET_ADMIN"]
    assert last["HostConfig"]["CapAdd"] == ["NET_ADMIN", "SYS_PTRACE"]
    assert last["HostConfig"]["Dns"] == ["10.0.0.10"]
    assert worker["HostConfig"]["Tmpfs"] == {"/cache": "size=app-1"}
    assert "Dns" not in worker["HostConfig"]
    assert request_from(json.loads(json.dumps(made.to_json()))).to_json() == made.to_json()
    assert '"NET_ADMIN"' in format_request(made)


@pytest.mark.parametrize(
    ("overlay", "text"),
    [
        ({"Env": [None]}, "option overlay.Env has None, which is not text; write 'NAME=value'"),
        ({"Image": "other"}, "role 'head': option overlay.Image is set by the launcher itself"),
        ({"HostConfig": {"AutoRemove": True}}, "option overlay.HostConfig.AutoRemove is set by the launcher"),
        ({"HostConfig": []}, "role 'head': option overlay: .*HostConfig"),
        ({"Healthcheck": object()}, "role 'head': option overlay has a value that is not valid JSON .*as dicts"),
        ({"CpuShares": float("nan")}, "role 'head': option overlay has a value that is not valid JSON .*as dicts"),
    ],
    ids=["Env", "image", "auto-remove", "list", "object", "nan"],
)
@pytest.mark.parametrize("is_of_role", [False, True], ids=["launch", "role"])
def test_an_overlay_of_an_option_that_does_not_fit_is_refused(overlay, text, is_of_role) -> None:
    cfg = {"by_role": {"head": {"overlay": overlay}}} if is_of_role else {"overlay": overlay}

    with pytest.raises(InvalidAppError, match=text):
        refuse_broken_overlays(request(role("head"), **cfg))
