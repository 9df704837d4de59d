"""Roles in the text of a request."""

from __future__ import annotations

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers._kit.request import format_role
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs import AppDef, Resource, Role


def shown(texts: list[str], num_replicas: int | None = None) -> list[str]:
    return format_role(
        "w",
        num_replicas or len(texts),
        "in /tmp",
        policy="APPLICATION",
        max_retries=0,
        replica=texts.__getitem__,
        shown=len(texts),
    )[1:]


def test_replicas_that_differ_by_their_number_are_shown_once():
    texts = [f"  [{k}] map {k} 3 part-{k}.csv\n      LAUNCH_REPLICA_ID={k}" for k in range(3)]

    assert shown(texts) == [texts[0], "  ... and 2 more that differ by their number only"]
    assert shown(texts, 50) == [texts[0], "  ... and 49 more that differ by their number only"]


@pytest.mark.parametrize(
    "texts",
    [
        ["  [0] map a", "  [1] map b"],
        ["  [0] map 5", "  [1] map 6"],
        ["  [0] map 0", "  [1] map 1 1"],
        ["  [0] map 1", "  [1] map 0"],
    ],
)
def test_any_other_difference_is_shown(texts):
    assert shown(texts) == texts


def test_one_replica_is_shown_alone():
    assert shown(["  [0] run"]) == ["  [0] run"]
    assert shown(["  [0] run"], 3) == ["  [0] run", "  ... and 2 more replicas"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_names_the_app_in_its_id_and_shows_the_retries(backend):
    image = "" if backend == "local" else "busybox"
    role = Role("main", image, entrypoint="true", max_retries=3, resource=Resource(cpu=1, gpu=0, memMB=100))
    cfg = {"queue": "q"} if backend == "aws_batch" else {}
    with Runner("test") as runner:
        info = runner.dryrun(AppDef("train", [role]), backend, cfg)

    assert info.request.app_id.startswith("train-")
    assert "  retries: 3 (APPLICATION)\n" in str(info)
