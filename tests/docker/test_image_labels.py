"""What an engine is asked of the labels of images: no engine is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.images import Images
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.specs import InvalidAppError


class Wire:
    """Has one image under each name."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.asked = 0

    @contextmanager
    def request(self, method: str, _path: str, *_args: object, **_how: object) -> Iterator[Any]:
        self.asked += method == "GET"
        yield Answer(json.dumps({"Config": {"Labels": self.labels}}).encode() if method == "GET" else b"")


class Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def iter_content(self, _size: int) -> Iterator[bytes]:
        yield self._data


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def images(wire: Wire) -> Images:
    return Images(wire, DockerConnection())  # type: ignore[arg-type]


def test_the_replicas_of_an_app_ask_once(wire: Wire, images: Images) -> None:
    for _ in range(100):
        images.refuse_large_labels("image")

    assert wire.asked == 1


def test_after_a_pull_a_name_is_checked_again(wire: Wire, images: Images) -> None:
    images.refuse_large_labels("image")
    wire.labels = {"a": "x" * 70_000}
    images.pull("image", None)

    with pytest.raises(InvalidAppError, match="'image' has labels of 70009 bytes, and at most 65536"):
        images.refuse_large_labels("image")


@pytest.mark.parametrize(("text", "taken"), [("x" * 65_000, True), ("<" * 10_000, True), ("<" * 11_000, False)])
def test_labels_count_as_the_engine_writes_them(wire: Wire, images: Images, text: str, taken: bool) -> None:
    wire.labels = {"a": text}
    if taken:
        images.refuse_large_labels("image")
        return
    with pytest.raises(InvalidAppError):
        images.refuse_large_labels("image")
