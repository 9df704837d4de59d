"""The faults as seen by docker-py, in front of a real Docker engine."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from uuid import uuid4

import docker
import pytest
import requests
from docker.errors import APIError
from docker.models.containers import Container

from tests.faults import Fault, FaultProxy, cut, drop_answer, error, silence
from tests.faults.frames import frames

pytestmark = pytest.mark.engine("docker")

LABELS = {"launch.io/managed": "true"}


@pytest.fixture
def client(docker_proxy) -> Iterator[docker.DockerClient]:
    with contextlib.closing(docker.DockerClient(docker_proxy.url, timeout=10)) as client:
        yield client


@pytest.fixture
def created(client, docker_engine):
    """Create a container that runs a shell script, and start it."""

    def create(script: str, *, start: bool = True) -> Container:
        name = f"launch-tests-{uuid4().hex[:10]}"
        command = ["sh", "-c", script]
        found = client.containers.create(
            docker_engine.image, command, name=name, labels=LABELS, network_mode="none", init=True
        )
        if start:
            found.start()
        return found

    return create


def raw_logs(client: docker.DockerClient, container: Container, **query: object) -> requests.Response:
    """Return the answer with raw frames, which docker-py would parse."""
    api = client.api
    query = {"stdout": 1, "stderr": 1, "timestamps": 1, **query}
    return api.get(api._url("/containers/{0}/logs", container.id), params=query, stream=True, timeout=10)


def read_into(got: bytearray, answer: requests.Response) -> None:
    for piece in answer.iter_content(1):
        got += piece


def lines(client: docker.DockerClient, container: Container, **query: object) -> list[tuple[datetime, str]]:
    """Return time and text of each frame of the log."""
    with raw_logs(client, container, **query) as answer:
        texts = [frame[8:].decode() for frame in frames(answer.iter_content(None))]
    return [(_time(text.split(" ", 1)[0]), text.split(" ", 1)[1]) for text in texts]


def _time(text: str) -> datetime:
    return datetime.strptime(f"{text[:26].rstrip('Z')}+0000", "%Y-%m-%dT%H:%M:%S.%f%z")


def _since(when: datetime) -> str:
    return f"{when.timestamp():.6f}000"


def test_a_container_lives_its_life_behind_the_proxy(docker_proxy, docker_engine, client, created):
    container = created("echo out; echo err >&2; exit 3")

    assert container.wait()["StatusCode"] == 3
    assert sorted(container.logs().splitlines()) == [b"err", b"out"]
    assert docker_proxy.count("POST", r"/containers/create$") == 1
    assert docker_proxy.matching("POST", r"/create$")[0].json["Image"] == docker_engine.image


def test_what_was_made_through_the_proxy_is_removed_and_nothing_else(docker_engine):
    other = docker_engine.client.containers.create(docker_engine.image, "true", labels=LABELS, network_mode="none")
    try:
        with FaultProxy(docker_engine.host) as proxy, contextlib.closing(docker.DockerClient(proxy.url)) as client:
            name = f"launch-tests-{uuid4().hex[:10]}"
            client.containers.create(docker_engine.image, "sleep 60", name=name, labels=LABELS).start()
            client.networks.create(name, labels={**LABELS, "launch.io/app-id": name})
            client.volumes.create(name, labels={**LABELS, "launch.io/app-id": name})
        docker_engine.remove_made(proxy)

        assert docker_engine.client.containers.list(all=True, filters={"name": name}) == []
        assert docker_engine.client.networks.list(names=[name]) == []
        assert docker_engine.client.volumes.list(filters={"name": name}) == []
        other.reload()
    finally:
        other.remove()


def test_a_followed_log_comes_line_by_line(client, created):
    container = created("echo one; sleep 2; echo two; sleep 30")

    with raw_logs(client, container, follow=1) as answer:
        stream = frames(answer.iter_content(None))
        assert next(stream).endswith(b" one\n")
        came = datetime.now(timezone.utc)
        assert came < _time(next(stream)[8:].decode().split()[0])


def test_an_error_is_docker_pys_own(docker_proxy, client):
    docker_proxy.add(Fault(error(500, "boom"), "GET", r"/containers/json$", nth=2))

    client.api.containers()
    with pytest.raises(APIError, match=r"500 Server Error for .*Internal Server Error \(\"boom\"\)"):
        client.api.containers()
    client.api.containers()


def test_a_lost_answer_leaves_a_container(docker_proxy, client, created):
    docker_proxy.add(Fault(drop_answer(), "POST", r"/containers/create$"))

    with pytest.raises(requests.ConnectionError, match="without response"):
        created("true")

    name = docker_proxy.matching("POST", r"/create$")[0].query["name"]
    assert client.containers.get(name).status == "created"


@pytest.mark.parametrize(("after", "kept"), [(0, 0), (3, 3), (8 + 5, 13)])
def test_a_log_is_cut_between_and_within_frames(docker_proxy, client, created, after, kept):
    container = created("for i in 1 2 3; do echo line $i; done")
    container.wait()
    with raw_logs(client, container) as answer:
        whole = answer.content
    two = sum(len(frame) for frame in itertools.islice(frames([whole]), 2))
    docker_proxy.add(Fault(cut(after, frames=2), path=r"/logs$"))
    got = bytearray()

    with raw_logs(client, container) as answer, pytest.raises(requests.exceptions.ChunkedEncodingError):
        read_into(got, answer)

    assert got == whole[: two + kept]


def test_a_log_falls_silent_within_a_frame(docker_proxy, client, created):
    container = created("for i in 1 2 3; do echo line $i; done")
    container.wait()
    docker_proxy.add(Fault(silence(3, frames=1), path=r"/logs$"))
    got = bytearray()
    api = client.api

    answer = api.get(api._url("/containers/{0}/logs", container.id), params={"stdout": 1}, stream=True, timeout=0.5)
    with answer, pytest.raises(requests.ConnectionError, match="Read timed out"):
        read_into(got, answer)

    assert len(got) == len(b"........line 1\n") + 3


def test_a_stalled_log_leaves_the_rest_of_the_engine_alone(docker_proxy, client, created):
    container = created("echo one; sleep 30")

    with docker_proxy.stalled(r"/logs$"):
        container.reload()
        assert container.status == "running"
        client.api.timeout = 0.5
        with pytest.raises(requests.ReadTimeout):
            container.logs()
    client.api.timeout = 10
    assert container.logs() == b"one\n"


@pytest.mark.parametrize("offset_s", [5.0, -5.0, 3600.0])
def test_another_clock_is_consistent(docker_proxy, client, created, offset_s):
    """A node with a wrong clock has no correct time: its answers and its requests are consistent."""
    container = created("echo one; sleep 1.2; echo two")
    container.wait()
    true = lines(client, container)
    container.reload()
    state = container.attrs
    offset = timedelta(seconds=offset_s)

    with docker_proxy.clock(offset_s):
        shown = lines(client, container)
        assert shown == [(when + offset, text) for when, text in true]
        assert lines(client, container, since=_since(shown[1][0])) == shown[1:]
        assert lines(client, container, until=_since(shown[0][0] + timedelta(seconds=1))) == shown[:1]
        assert lines(client, container, tail=1) == shown[1:]
        container.reload()
        for name in ("StartedAt", "FinishedAt"):
            assert _time(container.attrs["State"][name]) - _time(state["State"][name]) == offset
        assert _time(container.attrs["Created"]) - _time(state["Created"]) == offset
        date = parsedate_to_datetime(client.api.get(client.api._url("/_ping")).headers["Date"])
        assert abs(date - datetime.now(timezone.utc) - offset) < timedelta(seconds=5)
    with docker_proxy.clock(offset_s):
        row = client.api.containers(all=True, filters={"id": container.id})[0]
    assert row["Created"] == client.api.containers(all=True, filters={"id": container.id})[0]["Created"] + offset_s


def test_a_clock_that_was_never_started_stays_zero(docker_proxy, created):
    container = created("true", start=False)

    with docker_proxy.clock(60):
        container.reload()

    assert container.attrs["State"]["StartedAt"] == "0001-01-01T00:00:00Z"


def test_a_clock_steps_back_while_a_log_is_followed(docker_proxy, client, created):
    """Later lines then have earlier times; asking since a time gives both sides of the step, as the node would."""
    container = created("echo one; sleep 1; echo two; sleep 30")

    with docker_proxy.clock() as clock:
        with raw_logs(client, container, follow=1) as answer:
            stream = frames(answer.iter_content(None))
            one = _time(next(stream)[8:].decode().split()[0])
            clock.step(-1.5)
            two = _time(next(stream)[8:].decode().split()[0])
        assert timedelta(seconds=-1) < two - one < timedelta()
        assert [text for _, text in lines(client, container, since=_since(two))] == ["one\n", "two\n"]
        assert [text for _, text in lines(client, container, since=_since(one))] == ["one\n"]


def test_long_lines_keep_their_frames_under_another_clock(docker_proxy, client, created):
    """A line over 16 KiB is several frames with the same time; each length must fit."""
    container = created("head -c 50000 /dev/zero | tr '\\0' x; echo")
    container.wait()
    true = lines(client, container)

    with docker_proxy.clock(-5):
        shown = lines(client, container)

    assert len(true) > 1
    assert [text for _, text in shown] == [text for _, text in true]
    assert {when for when, _ in shown} == {when - timedelta(seconds=5) for when, _ in true}
