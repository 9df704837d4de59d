"""Records with numbers that no launch writes, as a program or another user may: an error of one app, at no cost."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_launch.schedulers.aws_batch import request as aws_batch
from airflow_provider_launch.schedulers.aws_batch.naming import Tag
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.docker import containers
from airflow_provider_launch.schedulers.docker import request as docker
from airflow_provider_launch.schedulers.docker.containers import DamagedError
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.kubernetes import manifests, objects
from airflow_provider_launch.schedulers.kubernetes import request as kubernetes
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE, plan_in
from airflow_provider_launch.schedulers.responses import add_error_files, app_response
from airflow_provider_launch.schedulers.slurm import request as slurm
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from airflow_provider_launch.specs.roles import MAX_REPLICAS, MAX_ROLES
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.util.untrusted import UntrustedError

APP = AppDef("app", [Role("main", "image", entrypoint="x", num_replicas=2, resource=Resource(1, 0, 512))])
Document = dict[str, Any]


def packed(document: Document) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


def of_docker(change: Callable[[Document], None]) -> None:
    document = docker.build_request(APP, DockerOpts(), "app-1", {}, []).to_json()
    change(document)
    docker.request_in({"Config": {"Env": [f"{docker.REQUEST_ENV}={json.dumps(document)}"]}})


def of_kubernetes(change: Callable[[Document], None]) -> None:
    document = kubernetes.build_request(APP, KubernetesOpts(), "app-1", {}).to_json()
    change(document)
    kubernetes.unpacked(packed(document))


def of_slurm(change: Callable[[Document], None]) -> None:
    document = json.loads(json.dumps(slurm.build_request(APP, SlurmOpts(), "app-1", {}).to_json()))
    change(document)
    slurm.request_from(document)


def of_aws_batch(change: Callable[[Document], None]) -> None:
    made = aws_batch.build_request(APP, AwsBatchOpts(queue="q"), "app-1", {})
    document = json.loads(json.dumps({"app": made.app, "options": made.options, "copied_env": made.copied_env}))
    change(document)
    definition = {"tags": {str(Tag.APP_ID): "app-1"}, "parameters": {aws_batch._RECORD: packed(document)}}
    if aws_batch.request_in(definition) is None:
        raise UntrustedError("it is ignored")


BACKENDS = [of_docker, of_kubernetes, of_slurm, of_aws_batch]


def counted(*counts: Any) -> Callable[[Document], None]:
    """Give the roles these numbers of replicas, in the app and, where the record has it, in the request."""

    def change(document: Document) -> None:
        for roles in (document["app"]["roles"], document.get("roles")):
            if roles:
                roles[:] = [{**roles[0], "name": f"r{n}", "num_replicas": count} for n, count in enumerate(counts)]

    return change


def named(name: str) -> Callable[[Document], None]:
    """Give the role this name, in the app and, where the record has it, in the request."""

    def change(document: Document) -> None:
        for roles in (document["app"]["roles"], document.get("roles")):
            if roles:
                roles[0]["name"] = name

    return change


CHANGES = {
    "a long name": named("x" * 1001),
    "a billion replicas": counted(10**9),
    "too many of two roles": counted(MAX_REPLICAS, 1),
    "a negative number": counted(10**9, 1 - 10**9),
    "a fraction": counted(2.0),
    "a text": counted("2"),
    "too many roles": counted(*[1] * (MAX_ROLES + 1)),
}


@pytest.mark.parametrize("record", BACKENDS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_record_with_more_replicas_than_an_app_can_have_is_damaged(record, change) -> None:
    """Each replica takes memory and time in every poll of a triggerer; a billion of them end it."""
    record(lambda _: None)

    with pytest.raises((DamagedError, *UNREADABLE)):
        record(change)


def test_a_plan_with_a_long_name_of_a_role_is_damaged() -> None:
    """Docker and Kubernetes read the plan of an app before its record."""
    long = "x" * 1001
    with pytest.raises(UntrustedError, match="1001 characters"):
        containers._plan(json.dumps({"roles": [[long, 2, "APPLICATION", 0]], "time_limit_s": None}))
    for place in (0, 1):
        plan = json.loads(manifests.plan_text(kubernetes.build_request(APP, KubernetesOpts(), "app-1", {})))
        assert plan_in(json.dumps(plan)).roles
        plan["roles"][0][place] = long
        with pytest.raises(UntrustedError, match="1001 characters"):
            plan_in(json.dumps(plan))


@pytest.mark.parametrize("record", BACKENDS[:3], ids=lambda each: each.__name__)
def test_a_record_whose_app_and_request_differ_is_damaged(record) -> None:
    def change(document: Document) -> None:
        document["app"]["roles"][0]["num_replicas"] = 3

    with pytest.raises((DamagedError, *UNREADABLE)):
        record(change)


def changed(name: str, value: Any, *, in_role: bool = False) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        (document["roles"][0] if in_role else document)[name] = value

    return change


WRONG_TYPES = {
    "a time limit that is a text": changed("time_limit_s", "x"),
    "a time limit that is a list": changed("time_limit_s", []),
    "a negative time limit": changed("time_limit_s", -1),
    "a name that is a number": changed("name", 5),
    "ports that are a list": changed("ports", []),
    "a port that is a text": changed("ports", {"A": "x"}),
    "arguments that are a text": changed("args", "x", in_role=True),
    "an argument that is None": changed("args", [None], in_role=True),
    "variables that are a list": changed("env", [], in_role=True),
    "a variable that is a number": changed("copied_env", {"A": 1}, in_role=True),
    "retries that are a text": changed("max_retries", "x", in_role=True),
    "a long slug": changed("slug", "x" * 1001, in_role=True),
    "a policy that does not exist": changed("policy", "x", in_role=True),
    "a policy that is a list": changed("policy", [], in_role=True),
}


@pytest.mark.parametrize("record", BACKENDS[:3], ids=lambda each: each.__name__)
@pytest.mark.parametrize("change", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_request_with_a_wrong_type_is_damaged(record, change) -> None:
    """It would fail later, in a call about many apps."""
    with pytest.raises((DamagedError, *UNREADABLE)):
        record(change)


@pytest.mark.parametrize(
    "body", [[], {}, {"Image": "i"}, {"Image": 5, "StopTimeout": 1}]
    + [{"Image": "i", "StopTimeout": grace} for grace in ("1", None, -1, True, 1e300, [])],
)  # fmt: skip
def test_a_container_with_a_wrong_type_is_damaged(body) -> None:
    """Its app could be neither cancelled nor deleted: a stop reads the grace time."""
    with pytest.raises(DamagedError):
        of_docker(changed("body", body, in_role=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [("options", {}), ("options", {"queue": ""}), ("options", {"queue": 5}), ("copied_env", None)]
    + [("copied_env", env) for env in ([], {"A": 1}, {"A": None})],
)
def test_a_definition_with_a_wrong_type_is_ignored(name, value, caplog) -> None:
    """A waiting app without a queue made the list fail for all apps of the account."""
    with pytest.raises(UntrustedError):
        of_aws_batch(lambda document: document.update({name: value}))
    assert "the record of app 'app-1' is damaged, and ignored: " in caplog.text


def test_indexes_of_a_job_are_counted() -> None:
    """16 KB of text needed 1.3 s of CPU."""
    assert objects._indexes("1,3-5,") == {1, 3, 4, 5}
    assert len(objects._indexes(f"0-{MAX_REPLICAS - 1}")) == MAX_REPLICAS

    for text in (f"0-{MAX_REPLICAS}", "0-9000,0-9000", "0-9000," * 2000, "5," * 20_000):
        with pytest.raises(UntrustedError):
            objects._indexes(text)


def test_texts_of_a_response_are_short_lines() -> None:
    """Each change of a message is a line of the task log, and is stored in events and checkpoints."""
    long = "A\n" * 10**6
    replica = ReplicaStatus(id=0, state=AppState.FAILED, role="main", hostname=long, reason=long)

    found = app_response("app", AppState.FAILED, msg=long, restarts=0, replicas={"main": [replica]}, app=APP)

    status = found.roles_statuses[0].replicas[0]
    for text in (found.msg, status.hostname, status.reason):
        assert 0 < len(text) <= 4096
        assert len(text.splitlines()) == 1


def test_errors_of_all_replicas_have_a_limit_together() -> None:
    replicas = [ReplicaStatus(id=k, state=AppState.FAILED, role="main", hostname="") for k in range(2000)]
    found = app_response("app", AppState.FAILED, msg="", restarts=0, replicas={"main": replicas}, app=APP)
    text, read = "x" * 10**6, []

    assert not add_error_files(found, lambda _, replica: read.append(replica.id) or text)
    assert 32 <= len(read) <= 33
    assert len(found.structured_error_msg) == 64 * 1024
