"""Every option and every field of a role reaches the engine, and the results of the app are returned."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import functools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from airflow_provider_launch.schedulers.api import DescribeAppResponse, Stream
from airflow_provider_launch.schedulers.docker import observer
from airflow_provider_launch.schedulers.docker.scheduler import DockerScheduler, create_scheduler
from airflow_provider_launch.specs import (
    AppDef,
    AppState,
    BindMount,
    DeviceMount,
    InvalidAppError,
    LaunchError,
    MissingDependencyError,
    Resource,
    Role,
    SchedulerRejectedError,
    SchedulerUnavailableError,
    VolumeMount,
)
from tests.docker.conftest import DockerApps
from tests.engines.docker import images
from tests.engines.docker.private import PrivateDocker
from tests.faults import Fault, drop, error
from tests.support.certificates import write_pair
from tests.support.entrypoints import image_with_entrypoint

pytestmark = pytest.mark.engine("docker")


def said(docker_apps, app_id: str, role: str = "main") -> list[str]:
    """Return the lines on stdout."""
    return "".join(docker_apps.lines(app_id, role, streams=Stream.STDOUT)).splitlines()


# ---- options ---------------------------------------------------------------------------------------------------------


def test_without_options(docker_apps):
    app_id = docker_apps.start(docker_apps.sh("true"), grace_s=10)
    container = docker_apps.container(app_id)
    host = container["HostConfig"]
    assert host["RestartPolicy"]["Name"] == "no"
    assert host["AutoRemove"] is False
    assert host["Privileged"] is False
    assert host["Init"] is True
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "500m", "max-file": "3"}}
    assert (host["NanoCpus"], host["Memory"]) == (0, 0)
    assert host["DeviceRequests"] is None
    assert container["Config"]["StopTimeout"] == 10
    assert list(container["NetworkSettings"]["Networks"]) == ["bridge"]


def test_the_entrypoint_of_the_image_runs_with_the_args(docker_apps):
    """Images of tools, such as dbt or aws-cli, are started like this; an image of a user may have one, too."""
    apps = docker_apps
    image = image_with_entrypoint(apps.client, apps.image)
    try:
        given = apps.start(Role("main", image, entrypoint=None, args=["a  b", "$HOME"]))
        plain = apps.start(Role("main", image, entrypoint=None))
        replaced = apps.start(Role("main", image, entrypoint="echo", args=["replaced"]))
        states = [apps.end(app_id).state for app_id in (given, plain, replaced)]

        assert states == [AppState.SUCCEEDED] * 3
        assert said(apps, given) == ["<a  b>", "<$HOME>"]
        assert said(apps, plain) == ["<cmd of the image>"]
        assert said(apps, replaced) == ["replaced"]
    finally:
        apps.close()
        apps.client.images.remove(image, force=True)


def test_options_of_one_role_reach_its_containers_only(docker_apps):
    roles = [docker_apps.sh("id -u; df -m /dev/shm | awk 'END {print $2}'", name) for name in ("head", "worker")]
    options = {"worker": {"user": "1234", "shm_size_mb": 16}}
    app_id = docker_apps.start(*roles, user="0", by_role=options)

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert said(docker_apps, app_id, "head") == ["0", "64"]
    assert said(docker_apps, app_id, "worker") == ["1234", "16"]


def test_a_replica_may_have_half_a_cpu_and_reserve_less_memory_than_its_limit(docker_apps):
    one, two = "/sys/fs/cgroup/cpu/cpu.cfs", "/sys/fs/cgroup/cpu.max"
    script = f"if test -f {two}; then cat {two}; else echo $(cat {one}_quota_us) $(cat {one}_period_us); fi"
    resource = Resource(cpu=0.5, gpu=0, memMB=64, cpu_request=0.25, memMB_request=32)
    app_id = docker_apps.start(docker_apps.sh(script, resource=resource))
    host = docker_apps.container(app_id)["HostConfig"]

    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    assert (host["NanoCpus"], host["CpuShares"]) == (500_000_000, 256)
    assert (host["Memory"], host["MemoryReservation"]) == (64 * 1024**2, 32 * 1024**2)
    quota, period = said(docker_apps, app_id)[0].split()
    assert int(quota) * 2 == int(period)


def test_every_option_reaches_the_engine(docker_apps, docker_proxy, monkeypatch):
    """Checked on the engine, and in the container itself where possible."""
    monkeypatch.setenv("HF_TOKEN", "copied")
    monkeypatch.setenv("HFX", "not copied")
    monkeypatch.setenv("AIRFLOW_HF", "never copied")
    platform = f"linux/{docker_apps.client.version()['Arch']}"
    script = """
        pwd; id -u; id -g; cat /proc/1/comm; echo "HF:$HF_TOKEN:$HFX:$AIRFLOW_HF"
        awk '$2 == "db" {print $1}' /etc/hosts; ulimit -S -n; ulimit -H -n; df -m /dev/shm | awk 'END {print $2}'
    """
    app_id = docker_apps.start(
        docker_apps.sh(script, resource=Resource(cpu=1, gpu=0, memMB=64)),
        pull="missing",
        copy_env=["HF_*", "AIRFLOW*"],
        user="65534:65534",
        working_dir="/tmp",
        privileged=True,
        init=False,
        platform=platform,
        extra_hosts={"db": "10.1.2.3"},
        ulimits={"nofile": "1000:2000", "core": "0"},
        shm_size_mb=7,
        log_max_mb=3,
        log_max_files=2,
        grace_s=2.5,
    )
    assert docker_apps.end(app_id).state is AppState.SUCCEEDED
    found = ["/tmp", "65534", "65534", "sh", "HF:copied::", "10.1.2.3", "1000", "2000", "7"]
    assert said(docker_apps, app_id) == found
    container = docker_apps.container(app_id)
    host = container["HostConfig"]
    assert host["Privileged"] is True
    assert host["Init"] is False
    assert host["ExtraHosts"] == ["db:10.1.2.3"]
    limits = {limit["Name"]: (limit["Soft"], limit["Hard"]) for limit in host["Ulimits"]}
    assert limits == {"nofile": (1000, 2000), "core": (0, 0)}
    assert host["ShmSize"] == 7 * 1024 * 1024
    assert host["LogConfig"]["Config"] == {"max-size": "3m", "max-file": "2"}
    assert host["NanoCpus"] == 1_000_000_000
    assert host["Memory"] == 64 * 1024 * 1024
    assert container["Config"]["StopTimeout"] == 3
    asked = docker_proxy.matching("POST", "/containers/create$")
    assert {request.query.get("platform") for request in asked} == {platform}
    assert docker_proxy.count("POST", "/images/create") == 0


def test_pull_always_asks_the_registry_once_for_each_image(docker_apps, docker_proxy):
    docker_proxy.add(Fault(error(404, "no such image"), "POST", "/images/create"))
    info = docker_apps.info(docker_apps.sh("true", "a"), docker_apps.sh("true", "b"), pull="always")
    with pytest.raises(SchedulerRejectedError, match="no such image"):
        docker_apps.scheduler.schedule(info)
    (request,) = docker_proxy.matching("POST", "/images/create")
    assert f"{request.query['fromImage']}:{request.query['tag']}" == docker_apps.image


# ---- networks --------------------------------------------------------------------------------------------------------


def test_an_image_by_its_id_is_never_pulled(docker_apps, docker_proxy):
    """No registry has it."""
    own = docker_apps.client.images.get(docker_apps.image).id
    found = docker_apps.run(docker_apps.sh("true", image=own), pull="always")

    assert found.state is AppState.SUCCEEDED
    assert docker_proxy.count("POST", "/images/create") == 0


@pytest.mark.parametrize("network", ["none", "host", "bridge"])
def test_a_network_of_docker(docker_apps, network):
    app_id = docker_apps.start(docker_apps.sh("true"), network=network)
    container = docker_apps.container(app_id)
    assert container["HostConfig"]["NetworkMode"] == network
    assert list(container["NetworkSettings"]["Networks"]) == [network]


def test_a_network_that_exists_is_used_and_stays(docker_apps):
    network = docker_apps.client.networks.create(f"launch-tests-{uuid4().hex[:8]}")
    try:
        app_id = docker_apps.start(docker_apps.sh("true"), network=network.name)
        assert list(docker_apps.container(app_id)["NetworkSettings"]["Networks"]) == [network.name]
        docker_apps.scheduler.delete(app_id)
        network.reload()
    finally:
        network.remove()


def test_a_network_of_the_app_goes_with_it(docker_apps):
    app_id = docker_apps.start(docker_apps.sh("true"), network="app")
    assert list(docker_apps.container(app_id)["NetworkSettings"]["Networks"]) == [app_id]
    assert docker_apps.client.networks.list(names=[app_id])
    docker_apps.scheduler.delete(app_id)
    assert docker_apps.client.networks.list(names=[app_id]) == []
    assert docker_apps.left(app_id) == []


@pytest.mark.parametrize("script", ["true", "exit 3"])
def test_a_network_of_the_app_goes_when_the_app_has_ended(docker_apps, script):
    """An engine supports about 30 of them; the containers remain, with their logs."""
    app_id = docker_apps.start(docker_apps.sh(f"echo here; {script}", num_replicas=2), network="app")
    docker_apps.end(app_id)

    assert docker_apps.client.networks.list(names=[app_id]) == []
    assert docker_apps.lines(app_id) == ["here\n"]
    assert docker_apps.another().describe(app_id) is not None


# ---- resources -------------------------------------------------------------------------------------------------------


def out_of_memory(docker_apps) -> DescribeAppResponse:
    """Run a program that exceeds its limit; again if a busy engine has missed the cause of the kill."""
    grow = docker_apps.sh("dd if=/dev/zero of=/dev/null bs=200M count=1", resource=Resource(cpu=0, gpu=0, memMB=16))
    for _ in range(5):
        app_id = docker_apps.start(grow)
        found = docker_apps.end(app_id)
        if docker_apps.container(app_id)["State"]["OOMKilled"]:
            return found
    pytest.fail("the engine never says that memory ran out")


def test_a_program_over_its_memory_limit(docker_apps):
    """Without the cause, users would search for the kill in their program."""
    found = out_of_memory(docker_apps)
    (replica,) = found.roles_statuses[0].replicas
    assert found.state is AppState.FAILED
    assert replica.reason == "out of memory"
    assert "out of memory" in found.msg


def test_that_memory_ran_out_is_known_even_if_the_engine_shows_it_late(docker_apps, monkeypatch):
    """The end of a container and its cause come in two messages; a busy engine shows one without the other."""
    engine = docker_apps.scheduler.engine
    plain, seen = engine.inspect, []

    def late(container: str) -> dict:
        document = plain(container)
        if document["State"]["ExitCode"] == 137:
            seen.append(container)
            if seen.count(container) == 1:
                document["State"]["OOMKilled"] = False
        return document

    monkeypatch.setattr(engine, "inspect", late)
    # A test machine may need longer from the list to the inspection than a real engine.
    monkeypatch.setattr(observer, "_LIMITED_CAUSE_S", 5.0)
    found = out_of_memory(docker_apps)
    assert seen.count(seen[-1]) == 2
    assert found.roles_statuses[0].replicas[0].reason == "out of memory"


def gpus_of(container) -> list[str]:
    (request,) = container["HostConfig"]["DeviceRequests"]
    assert request["Capabilities"] == [["gpu"]]
    assert request["Count"] == 0
    return request["DeviceIDs"]


def test_each_replica_gets_gpus_of_its_own(docker_apps, gpus):
    """A count would give the same first devices to every container."""
    docker_apps.scheduler = docker_apps.another(gpus=gpus)
    role = docker_apps.sh("true", num_replicas=2, resource=Resource(cpu=0, gpu=2, memMB=0))
    found = docker_apps.run(role)
    given = [gpus_of(container) for container in docker_apps.containers(found.app_id)]
    assert sorted(map(sorted, given)) == [gpus[0:2], gpus[2:4]]
    if found.state is AppState.FAILED:  # on a host without the GPU runtime
        assert "could not select device driver" in found.msg


def test_gpus_are_leased_until_the_app_has_ended(docker_apps, docker_proxy, gpus):
    gpu = Resource(cpu=0, gpu=1, memMB=0)
    docker_apps.scheduler = docker_apps.another(gpus=gpus[:3])
    docker_proxy.add(Fault(drop(), "POST", "/start$", times=None))
    waiting = docker_apps.info(docker_apps.sh("true", num_replicas=2, resource=gpu))
    with pytest.raises(SchedulerUnavailableError):
        docker_apps.scheduler.schedule(waiting)
    docker_proxy.clear()

    other = docker_apps.another(gpus=gpus[:3])
    too_many = docker_apps.info(docker_apps.sh("true", num_replicas=2, resource=gpu))
    holder = rf"\(leased by app '{waiting.request.app_id}' \(SUBMITTED\)\); wait for the others"
    with pytest.raises(SchedulerRejectedError, match=rf"wants 2 GPUs, 1 of 3 are free .* {holder}"):
        other.schedule(too_many)
    assert docker_apps.left(too_many.request.app_id) == []
    fits = docker_apps.start(docker_apps.sh("true", resource=gpu))
    assert gpus_of(docker_apps.container(fits)) == [gpus[2]]
    docker_apps.end(fits)
    docker_apps.scheduler.cancel(waiting.request.app_id)
    docker_apps.end(waiting.request.app_id)
    other.schedule(too_many)
    assert len(docker_apps.containers(too_many.request.app_id)) == 2


# ---- mounts ----------------------------------------------------------------------------------------------------------


def test_a_bind_mount(docker_apps, tmp_path):
    (tmp_path / "in").write_text("from the host\n")
    mounts = [BindMount(str(tmp_path), "/data"), BindMount(str(tmp_path), "/fixed", read_only=True)]
    script = "cat /data/in; echo from the app >/data/out; echo x >/fixed/no || echo refused"
    found = docker_apps.run(docker_apps.sh(script, mounts=mounts))
    assert said(docker_apps, found.app_id) == ["from the host", "refused"]
    assert (tmp_path / "out").read_text() == "from the app\n"
    assert not (tmp_path / "no").exists()


@pytest.fixture
def volume(docker_apps) -> Iterator[str]:
    name = f"launch-tests-{uuid4().hex[:8]}"
    yield name
    docker_apps.close()
    docker_apps.client.volumes.get(name).remove()


def test_a_volume_keeps_what_an_app_wrote(docker_apps, volume):
    """It outlives the app, also after a delete."""
    wrote = docker_apps.run(docker_apps.sh("echo kept >/data/file", mounts=[VolumeMount(volume, "/data")]))
    assert wrote.state is AppState.SUCCEEDED
    docker_apps.scheduler.delete(wrote.app_id)
    script = "cat /data/file; echo x >/data/no || echo refused"
    read = docker_apps.run(docker_apps.sh(script, mounts=[VolumeMount(volume, "/data", read_only=True)]))
    assert said(docker_apps, read.app_id) == ["kept", "refused"]


def test_a_device_with_its_permissions(docker_apps):
    mounts = [DeviceMount("/dev/zero", "/dev/launch-zero"), DeviceMount("/dev/zero", "/dev/launch-read", "r")]
    found = docker_apps.run(docker_apps.sh("head -c 2 /dev/launch-zero | wc -c; ls /dev | grep launch", mounts=mounts))
    assert said(docker_apps, found.app_id) == ["2", "launch-read", "launch-zero"]
    devices = docker_apps.container(found.app_id)["HostConfig"]["Devices"]
    assert [(one["PathInContainer"], one["CgroupPermissions"]) for one in devices] == [
        ("/dev/launch-zero", "rwm"),
        ("/dev/launch-read", "r"),
    ]


# ---- connection ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registry", "image", "server"),
    [
        ("registry.test:5000", "registry.test:5000/team/absent:1", "registry.test:5000"),
        (None, "team/absent:1", "https://index.docker.io/v1/"),
        ("docker.io", "absent:1", "https://index.docker.io/v1/"),
        ("registry.test:5000", "team/absent:1", None),
        ("registry.test:5000", "registry.test/team/absent:1", None),
        (None, "registry.test:5000/team/absent:1", None),
    ],
)
def test_a_password_is_shown_to_its_registry_only(docker_apps, docker_proxy, caplog, registry, image, server):
    """It is not logged anywhere either."""
    caplog.set_level(logging.DEBUG)
    login = {"registry": registry, "registry_username": "anna", "registry_password": "geheim"}
    docker_apps.scheduler = docker_apps.another(**login)
    docker_proxy.add(Fault(error(404, "denied"), "POST", "/images/create", times=None))
    info = docker_apps.info(docker_apps.sh("true", image=image), pull="missing")
    with pytest.raises(SchedulerRejectedError, match="denied") as caught:
        docker_apps.scheduler.schedule(info)

    (request,) = docker_proxy.matching("POST", "/images/create")
    sent = dict(request.headers).get("X-Registry-Auth")
    if server is None:
        assert sent is None
    else:
        shown = json.loads(base64.urlsafe_b64decode(sent))
        assert shown == {"username": "anna", "password": "geheim", "serveraddress": server}
    others = [one for one in docker_proxy.requests if one is not request]
    assert all("X-Registry-Auth" not in dict(one.headers) for one in others)
    printed = f"{caught.value} {info} {docker_apps.scheduler!r} {caplog.text}"
    assert "geheim" not in printed
    assert sent is None or sent not in printed


def test_ssh_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "paramiko", None)
    with (
        contextlib.closing(create_scheduler("tests", host="ssh://anna@engine.test")) as scheduler,
        pytest.raises(MissingDependencyError, match="the extra 'ssh'"),
    ):
        scheduler.describe("app")


# ---- engines of a special kind ---------------------------------------------------------------------------------------


@pytest.mark.engine("dockerd")
def test_an_engine_that_is_out_of_networks():
    """The next try would fail too, so a user has to act."""
    private = PrivateDocker()
    private.daemon.flags.append("--default-address-pool=base=10.77.0.0/23,size=24")  # one is used by the bridge
    with private, contextlib.closing(private.client()) as client:
        apps = DockerApps(private.host, client, images.busybox(client))
        with contextlib.closing(apps):
            first = apps.start(apps.sh("true"), network="app")
            info = apps.info(apps.sh("true"), network="app")
            with pytest.raises(
                SchedulerRejectedError, match=r"address pool.*; remove unused networks, or use .*'launch'"
            ):
                apps.scheduler.schedule(info)
            assert apps.left(info.request.app_id) == []
            apps.scheduler.delete(first)
            apps.scheduler.schedule(info)


@pytest.mark.engine("dockerd")
def test_an_engine_behind_tls(tmp_path):
    """Both sides authenticate; a side that does not gets a clear error."""
    engine, own = write_pair(tmp_path, "engine"), write_pair(tmp_path, "own")
    private = PrivateDocker()
    files = {"tlscacert": own["cert"], "tlscert": engine["cert"], "tlskey": engine["key"]}
    private.daemon.flags += ["--host=tcp://127.0.0.1:2376", "--tlsverify", *(f"--{k}={v}" for k, v in files.items())]
    good = {"tls_ca": engine["cert"], "tls_cert": own["cert"], "tls_key": own["key"]}

    def connected(**other: object) -> contextlib.closing[DockerScheduler]:
        files = {**good, **other}
        return contextlib.closing(create_scheduler("tests", host="tcp://127.0.0.1:2376", **files))

    def look(image: str) -> None:
        with connected() as scheduler:
            role = Role("main", image, entrypoint="true")
            app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [role]), {"pull": "never"}))
            response = scheduler.describe(app_id)
            assert response is not None
            assert response.roles_statuses[0].replicas[0].hostname == "127.0.0.1"
            scheduler.delete(app_id)
        unknown = {"tls_cert": engine["cert"], "tls_key": engine["key"]}
        for wrong in ({"tls_ca": own["cert"]}, unknown, {"tls_cert": None, "tls_key": None}):
            reason = "certificate verify failed" if "tls_ca" in wrong else "does not answer"
            with connected(**wrong) as scheduler, pytest.raises(SchedulerUnavailableError, match=reason):
                scheduler.describe("absent")

    with private, contextlib.closing(private.client()) as client:
        _inside(private, functools.partial(look, images.busybox(client)))


def _inside(private: PrivateDocker, call: Callable[[], None]) -> None:
    """Call in the network of the engine: a thread may have its own network, and its threads inherit it."""

    def run() -> None:
        with private._network.open() as network:
            assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0) == 0
        call()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


@pytest.mark.parametrize("known", [["tls_ca"], ["tls_cert", "tls_key"]])
def test_tls_files_that_are_missing(known):
    given = {name: f"/absent/{name}" for name in known}
    with (
        contextlib.closing(create_scheduler("tests", host="tcp://127.0.0.1:1", **given)) as scheduler,
        pytest.raises(InvalidAppError, match="the TLS files of the connection cannot be used"),
    ):
        scheduler.describe("app")


# ---- what the app hands back -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("""echo '{"accuracy": [0.5, null, "é"]}' >"$LAUNCH_RESULT_PATH" """, {"accuracy": [0.5, None, "é"]}),
        (
            """head -c 4094 /dev/zero | tr '\\0' x | sed 's/.*/"&"/' | head -c 4096 >"$LAUNCH_RESULT_PATH" """,
            "x" * 4094,
        ),
        ("true", None),
    ],
    ids=["document", "longest", "none"],
)
def test_a_result(docker_apps, script, expected):
    found = docker_apps.run(docker_apps.sh(script), docker_apps.sh('[ -z "$LAUNCH_RESULT_PATH" ]', "other"))
    assert found.state is AppState.SUCCEEDED
    assert docker_apps.another().result(found.app_id) == expected


@pytest.mark.parametrize(("code", "state"), [(0, AppState.SUCCEEDED), (3, AppState.FAILED)], ids=["ends", "fails"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("mkdir -p /airflow/xcom; echo '[1]' >/airflow/xcom/return.json", [1]),
        (": >$LAUNCH_RESULT_PATH; mkdir -p /airflow/xcom; echo '[1]' >/airflow/xcom/return.json", [1]),
        ("mkdir -p /airflow/xcom; echo '[1]' >/airflow/xcom/return.json; echo 2 >$LAUNCH_RESULT_PATH", 2),
    ],
    ids=["alone", "empty", "both"],
)
def test_a_result_where_kubernetes_pod_operator_has_it(docker_apps, script, expected, code, state):
    """An image of `KubernetesPodOperator` moves unchanged; the launcher's own file comes first."""
    found = docker_apps.run(docker_apps.sh(f"{script}; exit {code}"))
    assert found.state is state
    assert docker_apps.another().result(found.app_id) == expected


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("head -c 4097 /dev/zero | tr '\\0' 1 >$LAUNCH_RESULT_PATH", "4097 bytes, the limit is 4096"),
        ("head -c 30000000 /dev/zero >$LAUNCH_RESULT_PATH", "30000000 bytes, the limit is 4096"),
        ("echo '{broken' >$LAUNCH_RESULT_PATH", "not JSON"),
    ],
    ids=["longer", "huge", "broken"],
)
def test_a_result_that_cannot_be_handed_back(docker_apps, script, text):
    found = docker_apps.run(docker_apps.sh(script))
    assert found.state is AppState.SUCCEEDED
    with pytest.raises(LaunchError, match=text):
        docker_apps.scheduler.result(found.app_id)


def test_the_error_file_of_a_failed_replica(docker_apps):
    """PyTorch writes the text of an exception there; after a retry the last one counts."""
    reply = json.dumps({"message": {"message": "RuntimeError: attempt"}})
    script = f"echo '{reply}' | sed s/attempt/attempt-$LAUNCH_ATTEMPT/ >$TORCHELASTIC_ERROR_FILE; exit 1"
    found = docker_apps.run(docker_apps.sh(script, max_retries=1), docker_apps.sh("sleep 60", "other", max_retries=1))
    (failed,), (other,) = (role.replicas for role in found.roles_statuses)
    assert json.loads(failed.structured_error_msg) == {"message": {"message": "RuntimeError: attempt-1"}}
    assert found.structured_error_msg == failed.structured_error_msg
    assert other.state is AppState.CANCELLED
    assert "RuntimeError" not in str(other.structured_error_msg)
