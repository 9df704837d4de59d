"""Requests for the labels of images: no engine is needed."""

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
    """Has one image for each name."""

    is_plaintext = False

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
        assert images.large_labels("image") == []

    assert wire.asked == 1


def test_after_a_pull_a_name_is_checked_again(wire: Wire, images: Images) -> None:
    images.large_labels("image")
    wire.labels = {"a": "x" * 70_000, "b": "few"}
    images.pull("image", None)

    assert images.large_labels("image") == ["a"]


@pytest.mark.parametrize(("text", "large"), [("x" * 65_000, []), ("<" * 10_000, []), ("<" * 11_000, ["a"])])
def test_labels_count_as_the_engine_writes_them(wire: Wire, images: Images, text: str, large: list[str]) -> None:
    wire.labels = {"a": text, "b": "few"}

    assert images.large_labels("image") == large


def test_an_image_of_many_labels_is_refused(wire: Wire, images: Images) -> None:
    wire.labels = {f"{number:05}": "x" * 10 for number in range(3000)}
    with pytest.raises(InvalidAppError, match=r"'image' has 3000 labels of 69000 bytes.*; build it with fewer"):
        images.large_labels("image")


@pytest.mark.parametrize(
    ("image", "asked"), [("a:1..2", 1), ("team/a:v..", 1), ("http://a", 0), ("../a", 0), ("a/../b", 0)]
)
def test_only_a_name_that_leads_to_another_path_is_not_asked_for(
    wire: Wire, images: Images, image: str, asked: int
) -> None:
    images.large_labels(image)

    assert wire.asked == asked
