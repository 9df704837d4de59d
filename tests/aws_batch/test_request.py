"""The job that is built from an app: layouts, refusals, and golden files of the request."""

from __future__ import annotations

import base64
import json
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch._task.places import copied_variables
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchConnection, AwsBatchOpts
from airflow_provider_launch.schedulers.aws_batch.request import (
    AwsBatchRequest,
    build_request,
    format_request,
    request_in,
)
from airflow_provider_launch.schedulers.aws_batch.scheduler import AwsBatchScheduler
from airflow_provider_launch.specs import AppDef, BindMount, Resource, RetryPolicy, Role, VolumeMount, macros
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.named_resources_aws import NAMED_RESOURCES
from tests.support.bombs import bomb

GOLDEN = Path(__file__).parent / "golden"
ROOM = Resource(cpu=1, gpu=0, memMB=2048)


def role(name: str = "main", **fields: Any) -> Role:
    known = {"image": "repo/image:1", "entrypoint": "python", "args": ["-m", "x"], "resource": ROOM}
    return Role(name, **{**known, **fields})


def request(*roles: Role, **how: Any) -> AwsBatchRequest:
    return build_request(AppDef("app", [*roles]), AwsBatchOpts(**{"queue": "q", **how}), "app-1", {"HF_HOME": "/hf"})


TALKS = ["--host", macros.rank0_env]


@pytest.mark.parametrize(
    ("roles", "how", "layout"),
    [
        ([role()], {}, "single"),
        ([role(port_map={"x": 0}, max_retries=1)], {}, "single"),
        ([role(num_replicas=3)], {}, "array"),
        ([role(num_replicas=3, max_retries=2, retry_policy=RetryPolicy.REPLICA)], {}, "array"),
        ([role(num_replicas=3)], {"layout": "multi-node"}, "multi-node"),
        ([role(num_replicas=3, args=TALKS)], {}, "multi-node"),
        ([role(num_replicas=3, port_map={"x": 0})], {}, "multi-node"),
        ([role(num_replicas=3, max_retries=2)], {}, "multi-node"),
        ([role("a"), role("b")], {}, "multi-node"),
    ],
)
def test_the_layout_follows_from_the_app(roles, how, layout) -> None:
    assert request(*roles, **how).layout == layout


@pytest.mark.parametrize(
    ("name", "roles", "how"),
    [
        ("single", [role(env={"A": "1", "EMPTY": ""}, max_retries=2)], {"time_limit_s": 30, "copy_env": ["HF_*"]}),
        (
            "array",
            [role(num_replicas=3, args=[macros.replica_id, "it's"])],
            {"share_identifier": "team", "priority": 5},
        ),
        (
            "multi-node",
            [
                role("head", port_map={"rpc": 0}, mounts=[BindMount("/data", "/d", read_only=True)]),
                role("worker", num_replicas=2, env={"K": macros.replica_id}, mounts=[VolumeMount("fs-1:/x", "/efs")]),
            ],
            {"working_dir": "/w", "tags": {"team": "x"}, "secrets": {"KEY": "arn:aws:ssm:x"}, "shm_size_mb": 64},
        ),
        ("no-shell-nodes", [role("a"), role("b", num_replicas=2, args=TALKS)], {"shell": False}),
        (
            "entrypoint-of-the-image",
            [role(entrypoint=None), role("worker", entrypoint=None, args=TALKS, num_replicas=2), role("other")],
            {},
        ),
        ("no-shell", [role()], {"shell": False, "init": False, "overlay": {"readonlyRootFilesystem": True}}),
    ],
)
def test_the_request_is_that_of_the_file(name, roles, how) -> None:
    """Any change of the request shows in the diff; an empty or missing file is written again."""
    shown = format_request(request(*roles, **how)) + "\n"
    file = GOLDEN / f"{name}.txt"
    if not file.exists():
        file.write_text(shown, encoding="utf-8")

    assert file.read_text(encoding="utf-8") == shown


def test_a_request_is_found_again_in_its_definition() -> None:
    one = request(role("a", metadata={"x": ["ü"]}), role("b", num_replicas=2), copy_env=["HF_*"])
    found = request_in({**one.definition(1, 5), "revision": 1})

    assert found == one
    assert found is not None
    assert found.spec_hash == one.spec_hash
    assert format_request(found) == format_request(one)
    assert request_in({"tags": {}, "containerProperties": {"environment": []}}) is None


def test_inherited_variables_are_known_by_role() -> None:
    """Values under names of secrets are masked in the task log of every role."""
    native = AppDryRunInfo(request(role("a"), role("b"), copy_env=["HF_*"]), format_request)

    assert copied_variables(native) == {"a": {"HF_HOME": "/hf"}, "b": {"HF_HOME": "/hf"}}


def test_secrets_are_masked_also_within_the_script() -> None:
    shown = format_request(
        request(
            role(num_replicas=2, env={"API_TOKEN": f"hush-{macros.replica_id}", "B": "b"}, args=["--password=hush"])
        )
    )

    assert "hush" not in shown
    assert "***" in shown


def test_retries_are_counted_by_batch_and_a_lost_host_is_not_charged() -> None:
    assert request(role(max_retries=2)).definition(0, 0)["retryStrategy"] == {"attempts": 3}
    rules = request(role()).definition(0, 0)["retryStrategy"]
    assert rules["attempts"] == 10
    assert rules["evaluateOnExit"] == [
        {"onStatusReason": "Host EC2*", "action": "RETRY"},
        {"onReason": "*", "action": "EXIT"},
    ]
    assert request(role(num_replicas=2, max_retries=3)).definition(0, 0)["retryStrategy"] == {"attempts": 1}


@pytest.mark.parametrize("how", [{}, {"shell": False}])
def test_a_container_has_the_variables_of_its_role_only(how) -> None:
    """The record of the app, with the secrets of all roles, is where no program can read it."""
    one = request(role("a", env={"A": "hush-a"}), role("b", env={"B": "hush-b"}, args=["hush-arg"]), **how)
    definition = one.definition(0, 0)
    first, second = (json.dumps(each["container"]) for each in definition["nodeProperties"]["nodeRangeProperties"])
    (record,) = definition["parameters"].values()

    assert "hush-b" not in first
    assert "hush-arg" not in first
    assert 'hush-a"' not in second
    assert record not in first + second
    assert f"Ref::{next(iter(definition['parameters']))}" not in first + second
    assert "hush" not in json.dumps(definition["tags"])
    found = request_in(definition)
    assert found is not None
    assert found.app_def == one.app_def


@pytest.mark.parametrize(
    "record",
    [
        "",
        "!",
        "AAAA",
        base64.b64encode(zlib.compress(b"[" * 100_000)).decode(),
        base64.b64encode(bomb(64, byte=b"0")).decode(),
        base64.b64encode(zlib.compress(b'{"app": 1, "options": {}, "copied_env": {}}')).decode(),
        base64.b64encode(zlib.compress(b'{"x": 1}')).decode(),
    ],
    ids=["empty", "no text", "no data", "deep", "bomb", "no app", "other keys"],
)
def test_a_damaged_record_is_no_app_and_no_error(record) -> None:
    """A definition of another user of the account must not fail the list of all apps."""
    definition = request(role()).definition(0, 0)

    assert request_in({**definition, "parameters": {"launchRequest": record}}) is None


def test_an_attempt_of_nodes_has_names_of_its_own() -> None:
    one = request(role(num_replicas=2, max_retries=3))

    assert one.resubmits
    assert one.definition(2, 0)["jobDefinitionName"] == "launch-app-1_a2"
    assert one.submission(2, 4)["jobName"] == "app-1_a2"
    assert one.submission(2, 4)["jobDefinition"] == "launch-app-1_a2:4"


def test_an_instance_type_comes_from_a_named_resource() -> None:
    one = request(role(num_replicas=2, resource=NAMED_RESOURCES["aws_g5.xlarge"]()), layout="multi-node")
    (group,) = one.definition(0, 0)["nodeProperties"]["nodeRangeProperties"]

    assert group["container"]["instanceType"] == "g5.xlarge"
    assert {"type": "GPU", "value": "1"} in group["container"]["resourceRequirements"]


@pytest.mark.parametrize(
    ("roles", "how", "words"),
    [
        ([role()], {"queue": None}, ["queue"]),
        ([role(max_retries=10)], {}, ["max_retries=10", "9"]),
        ([role(name) for name in "abcdef"], {}, ["6 roles", "5"]),
        ([role(num_replicas=1001, args=TALKS)], {}, ["1001", "1000"]),
        ([role("a", max_retries=1, retry_policy=RetryPolicy.REPLICA), role("b")], {}, ["REPLICA", "APPLICATION"]),
        ([role("a"), role("b")], {"layout": "array"}, ["2 roles", "array"]),
        ([role(num_replicas=2, args=TALKS)], {"layout": "array"}, ["rank0_env", "multi-node"]),
        ([role(num_replicas=2, max_retries=1)], {"layout": "array"}, ["APPLICATION", "REPLICA"]),
        ([role("a"), role("b")], {"platform": "FARGATE"}, ["multi-node", "EC2"]),
        ([role()], {"platform": "FARGATE"}, ["execution_role_arn"]),
        ([role(resource=Resource(1, 0, 100))], {"platform": "FARGATE", "execution_role_arn": "x"}, ["memMB=100"]),
        ([role(resource=Resource(1, 1, 2048))], {"platform": "FARGATE", "execution_role_arn": "x"}, ["resource.gpu"]),
        ([role(num_replicas=2, args=[macros.replica_id])], {"shell": False}, ["replica_id", "shell"]),
        ([role()], {"shell": False, "working_dir": "/x"}, ["working_dir", "shell"]),
        ([role(num_replicas=6, args=TALKS)], {"shell": False}, ["6 replicas", "5", "sh"]),
        ([role(args=["$LAUNCH_RESULT_PATH"])], {"shell": False}, ["LAUNCH_RESULT_PATH", "shell", "result_prefix"]),
        (
            [role(args=["$LAUNCH_RESULT_PATH"])],
            {"overlay": {"logConfiguration": {"logDriver": "splunk"}}},
            ["LAUNCH_RESULT_PATH", "splunk", "result_prefix"],
        ),
        ([role()], {"result_prefix": "/tmp/x"}, ["result_prefix", "s3://"]),
        ([role(env={"AWS_BATCH_X": "1"})], {}, ["AWS_BATCH_X"]),
        ([role(args=["x" * 30_000])], {}, ["24576", "bytes"]),
        ([role()], {"overlay": {"command": ["x"]}}, ["overlay", "command"]),
        (
            [
                role("a", resource=NAMED_RESOURCES["aws_g5.xlarge"]()),
                role("b", resource=NAMED_RESOURCES["aws_m5.large"]()),
            ],
            {},
            ["g5.xlarge", "m5.large"],
        ),
    ],
)
def test_features_that_batch_lacks_are_refused_with_a_fix(roles, how, words) -> None:
    with pytest.raises(InvalidAppError) as caught:
        request(*roles, **how)

    assert [word for word in words if word not in str(caught.value)] == []
    assert ";" in str(caught.value)


def test_the_largest_app_can_be_registered_retried_and_cancelled() -> None:
    """Each of these registers a definition with other numbers, whose size counts for AWS too."""
    least, most = 10_000, 24_000
    while most - least > 1:
        middle = (least + most) // 2
        try:
            made = request(role(args=["x" * middle], num_replicas=2, max_retries=3))
            least = middle
        except InvalidAppError:
            most = middle
    definitions = [
        made.definition(attempt, now, cancelled=is_cancelled)
        for attempt, now, is_cancelled in (
            (0, 1_800_000_000, False),
            (3, 1_800_000_999, False),
            (13, 2_000_000_000, True),
        )
    ]

    sizes = [len(json.dumps(each).encode()) for each in definitions]
    assert 24_500 < max(sizes) <= 24_576


def test_a_role_without_a_size_has_one_of_fargate() -> None:
    made = request(role(resource=Resource(-1, 0, -1)), platform="FARGATE", execution_role_arn="x")

    needs = made.definition(0, 0)["containerProperties"]["resourceRequirements"]
    assert {need["type"]: need["value"] for need in needs} == {"VCPU": "1", "MEMORY": "2048"}


def test_a_replica_without_a_shell_has_a_node_range_and_a_number_of_its_own() -> None:
    one = request(role("a"), role("b", num_replicas=3, args=["--rank", macros.replica_id]), shell=False)
    ranges = one.definition(0, 0)["nodeProperties"]["nodeRangeProperties"]

    assert [each["targetNodes"] for each in ranges] == ["0:0", "1:1", "2:2", "3:3"]
    assert [each["container"]["command"] for each in ranges[1:]] == [
        ["python", "--rank", "0"],
        ["python", "--rank", "1"],
        ["python", "--rank", "2"],
    ]
    numbers = [
        {"name": "LAUNCH_REPLICA_ID", "value": str(k)} in each["container"]["environment"]
        for k, each in zip((0, 0, 1, 2), ranges, strict=True)
    ]
    assert numbers == [True] * 4


@pytest.mark.parametrize("count", [1, 3])
def test_a_result_in_s3_has_an_address_of_its_replica(count: int) -> None:
    """Without `sh` the children of an array do not know their numbers."""
    address = "s3://bucket/some/folder/app-1"
    how = {"result_prefix": "s3://bucket/some/folder/"}
    bare = request(role(num_replicas=count), shell=False, **how).definition(0, 0)["containerProperties"]
    scripted = request(role(num_replicas=count), **how).definition(0, 0)["containerProperties"]

    assert {"name": "LAUNCH_RESULT_S3", "value": f"{address}/0"} in bare["environment"]
    if count == 1:
        assert {"name": "LAUNCH_RESULT_S3", "value": f"{address}/0"} in scripted["environment"]
    else:
        assert f'export LAUNCH_RESULT_S3={address}/"$i"' in scripted["command"][2]


def test_roles_that_restart_by_themselves_are_refused_by_name() -> None:
    scheduler = AwsBatchScheduler("x", AwsBatchConnection())
    with pytest.raises(UnsupportedError, match="retry_policy ROLE"):
        scheduler.submit_dryrun(
            AppDef("app", [role(max_retries=1, retry_policy=RetryPolicy.ROLE)]), {"queue": "q"}, app_id="app-1"
        )


def test_credentials_of_two_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        AwsBatchConnection(aws_conn_id="aws_default", profile_name="x")
    with pytest.raises(ValueError, match="belong together"):
        AwsBatchConnection(aws_access_key_id="x")


def test_a_thousand_nodes_are_a_short_request() -> None:
    began = time.perf_counter()
    one = request(role("a"), role("b", num_replicas=999, args=[macros.replica_id]))

    assert len(json.dumps(one.definition(0, 0))) < 8000
    assert time.perf_counter() - began < 0.5


def test_fractions_of_a_vcpu_are_rounded_up_on_ec2_and_shown() -> None:
    made = request(role(resource=Resource(cpu=1.5, gpu=0, memMB=512)))
    needs = made.definition(0, 0)["containerProperties"]["resourceRequirements"]

    assert {"type": "VCPU", "value": "2"} in needs
    assert "cpu=1.5 is rounded up to 2 vCPUs of EC2" in format_request(made)
    assert "rounded" not in format_request(request(role()))


@pytest.mark.parametrize(("cpu", "mem_mb"), [("250m", 512), (0.25, -1), (0.5, 1024), (0.5, 4096)])
def test_fargate_has_fractions_of_a_vcpu(cpu: Any, mem_mb: int) -> None:
    made = request(role(resource=Resource(cpu, 0, mem_mb)), platform="FARGATE", execution_role_arn="arn:x")
    needs = made.definition(0, 0)["containerProperties"]["resourceRequirements"]

    assert {"type": "VCPU", "value": str(Resource(cpu, 0, 0).cpu)} in needs


@pytest.mark.parametrize(
    ("cpu", "mem_mb", "cure"), [(0.3, 1024, "cpu=0.5, memMB=1024"), (0.5, 512, "cpu=0.5"), (64, 2048, "cpu=16,")]
)
def test_fargate_refuses_other_sizes_and_names_the_next_one(cpu: float, mem_mb: int, cure: str) -> None:
    with pytest.raises(UnsupportedError, match=f"'main': resource cpu={cpu} .*choose e.g. {cure}"):
        request(role(resource=Resource(cpu, 0, mem_mb)), platform="FARGATE", execution_role_arn="arn:x")


@pytest.mark.parametrize("field", ["cpu_request", "memMB_request"])
def test_a_reservation_below_the_limit_is_refused(field: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"'main': resource.{field} is not offered by 'aws_batch'.*leave"):
        request(role(resource=Resource(1, 0, 2048, **{field: 1})))


def test_options_differ_by_role() -> None:
    made = request(role("head"), role("worker"), by_role={"worker": {"user": "2", "working_dir": "/w"}}, user="1")
    groups = request_in(made.definition(0, 0)).definition(0, 0)["nodeProperties"]["nodeRangeProperties"]
    head, worker = (each["container"] for each in groups)

    assert (head["user"], worker["user"]) == ("1", "2")
    assert "cd /w " in worker["command"][2]
    assert "cd /w " not in head["command"][2]
    with pytest.raises(InvalidAppError, match="option by_role: role 'head' has 'queue', which applies to the whole"):
        request(role("head"), by_role={"head": {"queue": "other"}})
