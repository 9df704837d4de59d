"""Requests to an engine, with a stub instead of docker-py's client: hosts by ssh, invalid values."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import types
from email.utils import formatdate
from typing import Any

import pytest
import requests

from airflow_provider_launch.schedulers._kit.http import NotFoundError
from airflow_provider_launch.schedulers.docker import access as module
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.naming import Label
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.scheduler import create_scheduler
from airflow_provider_launch.specs import InvalidAppError, SchedulerUnavailableError
from airflow_provider_launch.specs.errors import AppUnavailableError
from tests.faults import Fault, error
from tests.faults.wire import Answer


class SSHException(Exception):
    """Like paramiko's: not an error of the operating system."""


class ChannelException(SSHException):
    """Like paramiko's: the server opens no more sessions on this connection."""


PARAMIKO = types.SimpleNamespace(SSHException=SSHException, ChannelException=ChannelException)


class Transport:
    def __init__(self) -> None:
        self.active = True

    def is_active(self) -> bool:
        return self.active


class Client:
    """Like docker-py's by ssh: one transport, which it never replaces."""

    base_url, api_version = "http://engine.test", "1.41"

    def __init__(self) -> None:
        self.transport = Transport()
        self.pools: list[str] = []
        self._custom_adapter = types.SimpleNamespace(
            ssh_client=types.SimpleNamespace(get_transport=lambda: self.transport),
            get_connection=lambda url, _proxies=None: self.pools.append(url),
        )
        self.fails: Exception | None = None
        self.closed = 0

    def request(self, *_args: Any, **_how: Any) -> requests.Response:
        if self.fails is not None:
            raise self.fails
        response = requests.Response()
        response.status_code, response.raw = 200, io.BytesIO(b"[]")
        return response

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Return the created clients, in order."""
    made: list[Client] = []

    def make(*_args: object) -> Client:
        made.append(Client())
        return made[-1]

    monkeypatch.setitem(sys.modules, "paramiko", PARAMIKO)
    monkeypatch.setattr(module, "_client", make)
    return made


@pytest.fixture
def by_ssh(clients: list[Client]) -> Engine:
    engine = Engine(DockerConnection(host="ssh://anna@engine.test"))
    assert engine.images.ids() == []
    return engine


@pytest.mark.parametrize("error", [SSHException("SSH session not active"), EOFError(), ConnectionResetError()])
def test_after_a_failure_by_ssh_the_next_request_connects_again(by_ssh, clients, error):
    """Otherwise a worker that runs for months never reaches its engine again."""
    clients[0].fails = error
    clients[0].transport.is_active = iter([True, False]).__next__  # it breaks at this moment

    with pytest.raises(SchedulerUnavailableError, match="does not answer"):
        by_ssh.images.ids()
    assert by_ssh.images.ids() == []

    assert [client.closed for client in clients] == [1, 0]


def test_a_connection_by_ssh_that_ended_between_two_requests_is_replaced(by_ssh, clients):
    clients[0].transport.active = False

    assert by_ssh.images.ids() == []
    assert len(clients) == 2


def test_all_requests_by_ssh_use_the_same_sessions(by_ssh, clients):
    """docker-py keeps a session for each requested URL, and a server allows ten per connection."""
    for path in ("/containers/a/json", "/containers/b/json"):
        clients[0]._custom_adapter.get_connection(Client.base_url + path, None)

    assert len(set(clients[0].pools)) == 1


def test_a_server_without_another_session_is_connected_to_once_more(by_ssh, clients):
    """Open logs keep their sessions. The request was not sent, so any request may be repeated."""
    clients[0].fails = ChannelException("Connect failed")

    assert by_ssh.images.ids() == []

    assert [client.closed for client in clients] == [0, 0]


def test_a_server_that_opens_no_session_at_all_is_not_asked_for_ever(by_ssh, clients, monkeypatch):
    def refuse(*_args: Any, **_how: Any) -> None:
        raise ChannelException("prohibited")

    monkeypatch.setattr(Client, "request", refuse)

    with pytest.raises(SchedulerUnavailableError, match="does not answer: prohibited"):
        by_ssh.images.ids()

    assert len(clients) == 2


@pytest.mark.parametrize(
    ("error", "made"),
    [(SSHException("channel refused"), 2), (requests.ReadTimeout("slow"), 1)],
    ids=["refused", "slow"],
)
def test_a_connection_by_ssh_that_others_may_use_is_not_closed(by_ssh, clients, error, made):
    """A slow response does not mean that the connection is broken; logs of other apps may use it."""
    clients[0].fails = error
    with pytest.raises(SchedulerUnavailableError):
        by_ssh.images.ids()
    clients[0].fails = None
    by_ssh.images.ids()

    assert len(clients) == made
    assert clients[0].closed == 0


def test_a_host_by_ssh_that_refuses_us_is_unreachable(clients, monkeypatch):
    def refuse(*_args: object) -> Client:
        raise SSHException("Authentication failed.")

    monkeypatch.setattr(module, "_client", refuse)
    with pytest.raises(SchedulerUnavailableError, match=r"ssh://.* does not answer: Authentication failed\."):
        Engine(DockerConnection(host="ssh://anna@engine.test")).images.ids()


@pytest.mark.parametrize("host", ["tcp://h:99999", "tcp://h:abc", "tcp://[::1", "ftp://h", "ssh://h:99999"])
def test_an_invalid_host_is_refused(clients, host):
    with pytest.raises(
        InvalidAppError, match=r"is not a valid address of a Docker engine .*; write unix:///path, tcp://host"
    ):
        Engine(DockerConnection(host=host)).images.ids()
    assert clients == []


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        (["0", "1", "0"], "names a GPU twice"),
        (["0,1"], "one GPU in each entry"),
        (["0", ""], "one GPU in each entry"),
        (["0", " 1"], "one GPU in each entry"),
    ],
)
def test_gpus_that_cannot_be_distinguished(gpus, why):
    """Two replicas would get the same device, or none."""
    with pytest.raises(InvalidAppError, match=f"{why}"):
        create_scheduler("tests", gpus=gpus)


@pytest.mark.parametrize(
    ("registry", "image"),
    [
        ("https://index.docker.io/v1/", "team/x"),
        ("index.docker.io", "docker.io/team/x"),
        ("docker.io", "index.docker.io/team/x"),
        ("https://hub.docker.com", "team/x"),
        ("registry-1.docker.io", "team/x"),
        ("https://reg.example.com/v2/", "reg.example.com/x"),
        (" REG.example.com/", "reg.example.com/x"),
        ("reg.example.com", "REG.example.com/x"),
        ("http://reg.example.com:5000", "reg.example.com:5000/x"),
    ],
)
def test_a_registry_is_identified_by_its_host(registry, image):
    """In the form of `docker login`, and in forms that people use."""
    login = {"registry": registry, "registry_username": "anna", "registry_password": "geheim"}

    assert Engine(DockerConnection(**login)).images.auth_headers(image)
    assert not Engine(DockerConnection(**login)).images.auth_headers("other.example.com/x")


@pytest.mark.parametrize("name", ["registry_username", "registry_password"])
def test_half_a_login_is_refused(name):
    with pytest.raises(InvalidAppError, match="registry_username and registry_password of the connection belong") as e:
        Engine(DockerConnection(host="tcp://127.0.0.1:1", **{name: "geheim"})).images.ids()
    assert "geheim" not in str(e.value)


@pytest.mark.parametrize("timeout_s", [0, 86401, 1e10])
def test_a_timeout_that_no_engine_survives(timeout_s):
    with pytest.raises(InvalidAppError, match="timeout_s"):
        create_scheduler("tests", timeout_s=timeout_s)


@pytest.mark.engine("docker")
def test_an_image_that_is_an_address_is_refused_and_leaves_nothing(docker_apps, docker_proxy):
    """The first role's image exists, so the record is created before the pull."""
    docker_apps.scheduler = docker_apps.another(registry_username="anna", registry_password="geheim")
    missing = error(404, "no such image: https://reg/x:1")

    def of_b(exchange: Any) -> None:
        if "-b-" in exchange.request.query["name"]:
            missing(exchange)
        else:
            exchange.relay(exchange.forward())

    docker_proxy.add(Fault(of_b, "POST", "/containers/create", times=None))
    roles = [docker_apps.sh("true", "a"), docker_apps.sh("true", "b")]
    info = docker_apps.info(*roles, pull="missing")
    info.request.roles[1].body["Image"] = "https://reg/x:1"  # an overlay may change it like this

    with pytest.raises(InvalidAppError, match="'https://reg/x' is not a valid image name"):
        docker_apps.scheduler.schedule(info)

    assert docker_apps.left(info.request.app_id) == []


@pytest.mark.engine("docker")
def test_a_rename_waits_for_a_removal(docker_apps, docker_proxy):
    """The engine answers 500 while it removes a container, and an app that was deleted then looked unreachable."""
    text = "open /var/lib/docker/containers/1b/config.v2.json: no such file or directory"
    docker_proxy.add(Fault(error(500, text), "POST", "/rename$", times=2))

    with pytest.raises(NotFoundError):
        docker_apps.scheduler.engine.rename("launch-removed", "launch-other")
    assert docker_proxy.count("POST", "/rename$") == 3


@pytest.mark.engine("docker")
def test_the_version_is_negotiated_again_after_an_upgrade(docker_apps, docker_proxy):
    """The API version is negotiated once per connection, and later engines refuse early versions."""
    docker_apps.scheduler.describe("absent")
    before = docker_proxy.count("GET", "/_ping")
    text = "client version 1.41 is too old. Minimum supported API version is 1.44, please upgrade your client"
    docker_proxy.add(Fault(error(400, text), "GET", "/containers/json"))

    with pytest.raises(SchedulerUnavailableError, match=r"client version 1\.41 is too old"):
        docker_apps.scheduler.describe("absent")
    assert docker_apps.scheduler.describe("absent") is None

    assert docker_proxy.count("GET", "/_ping") == before + 1


@pytest.mark.engine("docker")
@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refusal_that_is_cut_off_is_an_outage(docker_apps, docker_proxy, status, silent):
    """An engine that dies during an error has refused nothing; a follower retries only after outages."""
    scheduler = docker_apps.another(timeout_s=1)
    assert scheduler.describe("absent") is None

    def half(exchange: Any) -> None:
        answer = Answer(status, "Refused", [("Content-Type", "application/json")], iter(())).with_body(b"." * 40)
        exchange.relay(answer, [b'{"message": "too'], whole=False)
        if silent:
            exchange.wait()
        exchange.drop()

    docker_proxy.add(Fault(half, "GET", "/containers/json"))

    with pytest.raises(SchedulerUnavailableError, match=r"does not answer: .*([Tt]imed out|IncompleteRead)"):
        scheduler.describe("absent")
    assert scheduler.describe("absent") is None


@pytest.mark.engine("docker")
def test_a_container_that_has_lost_its_name_is_a_removed_one(docker_apps, docker_proxy):
    """Docker 20.10 lists one that was renamed during its removal until it is restarted, and finds it nowhere else."""
    app_id = docker_apps.scheduler.schedule(docker_apps.info(docker_apps.sh("sleep 60")))
    (row, *_) = docker_apps.client.api.containers(all=True, filters={"label": f"{Label.APP_ID}={app_id}"})
    body = json.dumps([{**row, "Names": []}]).encode()

    def nameless(exchange: Any) -> None:
        headers = [("Content-Type", "application/json"), ("Date", formatdate(usegmt=True))]
        exchange.relay(Answer(200, "OK", headers, iter(())).with_body(body))

    docker_proxy.add(Fault(nameless, "GET", "/containers/json", times=None))

    assert docker_apps.another().describe(app_id) is None


@pytest.mark.parametrize(
    ("message", "removals"),
    [
        ("unable to remove filesystem: unlinkat /x: directory not empty", 3),
        ("device or resource busy", 3),
        ("other", 1),
    ],
)
def test_a_removal_is_repeated_while_the_files_are_in_use(
    monkeypatch: pytest.MonkeyPatch, message: str, removals: int
) -> None:
    """An engine that removes a container just after its start may still write its files."""
    engine = Engine(DockerConnection(host="unix:///none"))
    sent: list[str] = []

    def request(method: str, *_: Any) -> contextlib.AbstractContextManager[None]:
        sent.append(method)
        if len(sent) < 3:
            raise AppUnavailableError(f"cannot serve DELETE now (500): {message}")
        return contextlib.nullcontext()

    monkeypatch.setattr(engine.wire, "request", request)
    with contextlib.suppress(AppUnavailableError) if removals == 1 else contextlib.nullcontext():
        engine.remove("id")

    assert sent == ["DELETE"] * removals
