"""`@task.launch_python` on each real engine, in both modes; the file of these tests is the DAG file."""

from __future__ import annotations

import base64
import json
import math
import os
import random
import re
import runpy
import socket
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.decorators.launch_python import launch_python_task
from airflow_provider_launch.functions import Replica
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.specs import Resource
from airflow_provider_launch.specs.errors import AppFailedError
from tests.airflow.guarantees import CONN, Heard, LocalPlace, Place, image_of, in_modes, meanwhile, on_places
from tests.airflow.support import FakeExecutionApi, Ran, a_dag, run_task, run_to_end

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
MEET_WITHIN_S = 60
GREET_PORT = 18_437
BATCH_BYTES = 3_000
EXAMPLE = Path(__file__).resolve().parents[2] / "example_dags/launch_function.py"


@dataclass
class Count:
    word: str
    number: int = 0


def counted(words: list[str]) -> list[Count]:
    return [Count(word, number) for word, number in Counter(words).most_common()]


def train(lr: float, *, words: list[str], replica: Replica) -> dict[str, Any]:
    print(f"replica {replica.id} of {replica.count}: {json.dumps(replica.part(WORDS))}", flush=True)
    best = counted(words)[0]
    return {"rank": replica.id, "lr": lr, "best": [best.word, best.number], "python": list(sys.version_info[:2])}


def share(items: list[int], replica: Replica) -> list[int]:
    return replica.part(items)


def fails(number: float) -> float:
    return too_bad(number)


def too_bad(number: float) -> float:
    raise ValueError(f"{number} is too bad")


def second_time(replica: Replica) -> int:
    if not replica.attempt:
        raise OSError("the first time")
    return replica.attempt


def meet(replica: Replica) -> list[str] | None:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if replica.id == 0:
        with socket.create_server(("", port)) as server, server.accept()[0] as other:
            return [os.environ["RANK"], os.environ["WORLD_SIZE"], other.recv(20).decode()]
    deadline = time.monotonic() + MEET_WITHIN_S
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                connection.sendall(f"from {replica.id}".encode())
                return None
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def greet(replica: Replica) -> list[str] | None:
    address = replica.rank0_host, replica.port("greet-port")
    if replica.id == 0:
        with socket.create_server(("", address[1])) as server, server.accept()[0] as other:
            return [address[0], other.recv(20).decode()]
    for _ in range(600):
        try:
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(f"from {replica.id}".encode())
                return None
        except OSError:
            time.sleep(0.1)
    raise TimeoutError


def losses(text: str) -> dict[str, Any]:
    """Return a value of about 9 KB, which is packed."""
    found = [{"epoch": epoch, "loss": round(1 / (epoch + 1), 4)} for epoch in range(280)]
    return {"count": len(text), "sum": zlib.crc32(text.encode()), "losses": found, "last": math.inf}


def epochs(text: str, replica: Replica) -> dict[str, Any]:
    if not replica.attempt:
        raise OSError("the first time")
    return losses(text)


def cleans_up() -> None:
    try:
        print("begun", flush=True)
        time.sleep(300)
    finally:
        print("cleaned up", flush=True)


def made(place: Place, function: Callable[..., Any], *args: Any, options: dict[str, Any], **kwargs: Any) -> Any:
    """Return the task that the decorated function makes on the place."""
    how = {
        "task_id": place.mark,
        "launch_conn_id": CONN,
        **({} if "image" in options else {"image": image_of(place)}),
        "resource": Resource(cpu=1, gpu=0, memMB=64),
        "poll_interval_s": 0.2,
        # Most of these functions are faster than the default, and would never meet the trigger.
        "defer_after_s": 0.5,
    }
    with a_dag():
        return launch_python_task(function, **how, **options)(*args, **kwargs).operator


def run(operator: Any, api: FakeExecutionApi) -> Ran:
    return run_to_end(operator, api)[0]


@on_places
@in_modes
def test_its_value_is_that_of_replica_0(place: Place, deferrable: bool) -> None:
    api = FakeExecutionApi()
    options = {"num_replicas": 4, "deferrable": deferrable}
    ran = run(made(place, train, 0.1, words=["b", "a", "{{ run_id }}", "a"], options=options), api)

    assert ran.error is None, (ran.error, ran.lines)
    value = api.xcoms[place.mark, "return_value"]
    assert value["python"] >= [3, 8]
    assert {**value, "python": None} == {"rank": 0, "lr": 0.1, "best": ["a", 2], "python": None}
    assert api.xcoms[place.mark, "app"]["roles"] == {"train": [0, 0, 0, 0]}
    shown = [line for line in ran.lines if re.match(r"\[train/\d\] replica \d of 4: ", line)]
    assert sorted(line[:18] for line in shown) == [f"[train/{k}] replica {k}"[:18] for k in range(4)]


@on_places
@in_modes
def test_its_error_names_the_lines_of_the_file(place: Place, deferrable: bool) -> None:
    api = FakeExecutionApi()
    ran = run(made(place, fails, 0.5, options={"deferrable": deferrable}), api)
    line = too_bad.__code__.co_firstlineno + 1

    assert isinstance(ran.error, AppFailedError), ran.error
    assert "ValueError: 0.5 is too bad" in str(ran.error)
    assert f"test_launch_python_engines.py:{line}, in too_bad: raise ValueError(" in str(ran.error)
    assert ran.logged(f'File "{__file__}", line {line}, in too_bad'), ran.lines
    assert api.xcoms[place.mark, "app"]["roles"] == {"fails": [1]}
    assert (place.mark, "return_value") not in api.xcoms


@on_places
@in_modes
def test_gather_returns_all_values(place: Place, deferrable: bool) -> None:
    api = FakeExecutionApi()
    options = {"num_replicas": 3, "gather": True, "deferrable": deferrable}
    ran = run(made(place, share, [*range(7)], options=options), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == [[0, 1], [2, 3], [4, 5, 6]]


@on_places
def test_its_app_retries(place: Place) -> None:
    api = FakeExecutionApi()
    ran = run(made(place, second_time, options={"max_retries": 1}), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == 1


@on_places
@in_modes
def test_its_replicas_meet_as_those_of_torch(place: Place, deferrable: bool) -> None:
    api = FakeExecutionApi()
    options = {"num_replicas": 2, "torch": True, "deferrable": deferrable}
    ran = run(made(place, meet, options=options), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == ["0", "2", "from 1"]


@on_places
def test_its_replicas_meet_by_a_port(place: Place) -> None:
    api = FakeExecutionApi()
    ran = run(made(place, greet, options={"num_replicas": 2, "port_map": {"greet-port": GREET_PORT}}), api)

    assert ran.error is None, (ran.error, ran.lines)
    host, word = api.xcoms[place.mark, "return_value"]
    assert host
    assert word == "from 1"


def largest(place: Place) -> int:
    """Return the number of bytes of a random text that is an argument on each engine; a job definition has 24 KB."""
    return BATCH_BYTES if place.connection["conn_type"] == "launch_aws_batch" else 990_000


def random_text(size: int) -> str:
    """Return a text that cannot be compressed well."""
    return base64.b64encode(random.Random(7).randbytes(size)).decode()[:size]


@on_places
def test_the_largest_argument_arrives_and_a_packed_value_comes_back(place: Place, caplog) -> None:
    """Also in a second attempt, which takes it from where the engine has stored it."""
    text = random_text(largest(place))
    api = FakeExecutionApi()
    ran = run(made(place, epochs, text, options={"max_retries": 1}), api)

    assert ran.error is None, (ran.error, ran.lines)
    value = api.xcoms[place.mark, "return_value"]
    assert value == {**losses(text), "last": None}
    assert api.xcoms[place.mark, "app"]["attempts"] == 2
    assert [record.getMessage() for record in caplog.records if "NaN or Infinity" in record.getMessage()] == [
        "the result has NaN or Infinity at 'value.last', which JSON does not have: null is stored instead"
    ]


@on_places
def test_an_argument_that_is_too_large_is_refused_before_the_launch(place: Place) -> None:
    is_batch = place.connection["conn_type"] == "launch_aws_batch"
    text = random_text(20_000 if is_batch else 1_000_000)
    cure = (
        "AWS Batch has a limit of 24576; shorten args" if is_batch else "the limit is 1000000; store the data, and pass"
    )
    ran = run(made(place, losses, text, options={"retries": 1}), FakeExecutionApi(retries=1))

    assert ran.state == "failed"
    assert cure in str(ran.error)
    assert place.apps() == []


class WorkerDiedError(BaseException):
    """The worker was lost."""


@on_places
@in_modes
def test_a_lost_worker_costs_neither_the_value_nor_a_second_app(place: Place, deferrable: bool) -> None:
    """The app has succeeded and was removed before Airflow recorded the success."""
    api = FakeExecutionApi(retries=1)

    def die(method: str, parts: list[str], _body: object) -> None:
        if (method, parts[0], parts[-1]) == ("POST", "xcoms", "return_value"):
            raise WorkerDiedError

    options = {"deferrable": deferrable, "on_finish": "delete", "retries": 1, "num_replicas": 2, "gather": True}
    operator = made(place, share, [1, 2], options=options)
    api.on_call = die
    assert isinstance(run(operator, api).error, WorkerDiedError)
    api.on_call = lambda *_: None
    api.resume = {}
    ran = run_task(operator, api, try_number=2)

    assert ran.state == "success", ran.error
    assert api.xcoms[place.mark, "return_value"] == [[1], [2]]
    assert any("its result was kept" in line for line in ran.lines)


@on_places
@in_modes
def test_its_finally_runs_when_the_app_is_cancelled(place: Place, deferrable: bool) -> None:
    api = FakeExecutionApi()
    operator = made(place, cleans_up, options={"deferrable": deferrable})

    def cancel() -> None:
        heard.until("[cleans_up/0] begun")
        hook = LaunchHook.for_connection(CONN)
        try:
            hook.scheduler.cancel(place.apps()[0])
        finally:
            hook.close()

    with Heard() as heard, meanwhile(cancel, place):
        ran = run(operator, api)

    assert isinstance(ran.error, AppFailedError), ran.error
    assert ran.logged("[cleans_up/0] cleaned up")
    assert api.xcoms[place.mark, "app"]["roles"] == {"cleans_up": [143]}


@pytest.mark.engine("torch")
@pytest.mark.engine("local")
@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_real_torch_meets(place: Place) -> None:
    assert isinstance(place, LocalPlace)

    def reduce(replica: Replica) -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        number = torch.tensor([float(replica.id + 1)])
        dist.all_reduce(number)
        dist.destroy_process_group()
        return number[0]

    api = FakeExecutionApi()
    ran = run(made(place, reduce, options={"num_replicas": 2, "torch": True}), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == 3.0


@pytest.fixture
def nearby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function of a file that imports a module next to it."""
    (tmp_path / "nearby_module.py").write_text("WORD = 'here'\n")
    (tmp_path / "workspace_dag.py").write_text("import nearby_module\n\ndef word():\n    return nearby_module.WORD\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function: Callable[..., Any] = __import__("workspace_dag").word
    for name in ("workspace_dag", "nearby_module"):
        monkeypatch.delitem(sys.modules, name)
    return function


@pytest.mark.parametrize(
    "place",
    [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("local", "docker", "slurm")],
    indirect=True,
)
@in_modes
def test_a_workspace_brings_modules_next_to_the_file(place: Place, nearby, tmp_path, deferrable: bool) -> None:
    api = FakeExecutionApi()
    ran = run(made(place, nearby, options={"workspace": str(tmp_path), "deferrable": deferrable}), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == "here"


@pytest.mark.engine("kubernetes")
@pytest.mark.engine("docker")  # builds the image
@pytest.mark.engine("registry")
@pytest.mark.engine("kube-apiserver")  # a cluster of our own, which takes images from a registry without TLS
@pytest.mark.parametrize("place", ["kubernetes"], indirect=True)
@in_modes
def test_a_workspace_is_built_for_pods(
    place: Place, nearby, tmp_path, docker_engine, registry, deferrable: bool
) -> None:
    api = FakeExecutionApi()
    cfg = {"pull": "missing", "image_repo": f"{registry}/functions", "build_host": os.environ["DOCKER_HOST"]}
    image = docker_engine.python_image()
    options = {"workspace": str(tmp_path), "image": image, "cfg": cfg, "deferrable": deferrable}
    ran = run(made(place, nearby, options=options), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == "here"


@pytest.mark.engine("aws_batch")
@pytest.mark.engine("registry")
@pytest.mark.parametrize("place", ["aws_batch"], indirect=True)
@in_modes
def test_a_workspace_is_built_for_jobs(
    place: Place, nearby, tmp_path, docker_engine, registry, deferrable: bool
) -> None:
    api = FakeExecutionApi()
    cfg = {"image_repo": f"{registry}/functions", "build_host": os.environ["DOCKER_HOST"]}
    image = docker_engine.python_image()
    options = {"workspace": str(tmp_path), "image": image, "cfg": cfg, "deferrable": deferrable}
    ran = run(made(place, nearby, options=options), api)

    assert ran.error is None, (ran.error, ran.lines)
    assert api.xcoms[place.mark, "return_value"] == "here"


@pytest.mark.parametrize(
    "place",
    [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("kubernetes", "aws_batch")],
    indirect=True,
)
def test_a_workspace_without_a_repository_is_refused_with_the_cure(place: Place, nearby, tmp_path) -> None:
    ran = run(made(place, nearby, options={"workspace": str(tmp_path), "retries": 1}), FakeExecutionApi(retries=1))

    assert ran.state == "failed", ran.lines
    assert "set the option image_repo" in str(ran.error)
    assert place.apps() == []


@on_places
def test_the_example_runs_everywhere(place: Place, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAUNCH_LOCAL_DEFAULT", json.dumps(place.connection))
    dag = runpy.run_path(str(EXAMPLE))["example"]()
    estimate, report = dag.get_task("estimate"), dag.get_task("report")
    # As its author would change it for another scheduler.
    estimate.partial_kwargs |= {"image": image_of(place), "resource": Resource(cpu=1, gpu=0, memMB=64)}
    estimate.task_id = place.mark
    found = []
    for index in range(2):
        api = FakeExecutionApi()
        ran, _ = run_to_end(estimate, api, map_index=index)
        assert ran.error is None, (ran.error, ran.lines)
        found.append(api.xcoms[place.mark, "return_value", index])

    assert [[one["samples"] for one in each] for each in found] == [[1_000] * 3, [100_000] * 3]
    assert abs(report.python_callable(found) - 3.1416) < 0.02
