"""The objects that are built from an app. No cluster is needed."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import re
import zlib
from typing import Any

import pytest

from airflow_provider_launch.schedulers.environment import FIELD_PATH
from airflow_provider_launch.schedulers.kubernetes.manifests import (
    format_request,
    job_body,
    plan_text,
    pod_body,
    record_body,
    refuse_too_large,
)
from airflow_provider_launch.schedulers.kubernetes.naming import APP_ID, Annotation, app_slug, job_name, role_slugs
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE
from airflow_provider_launch.schedulers.kubernetes.request import (
    KubernetesRequest,
    build_request,
    packed,
    restricted,
    unpacked,
    variables_in,
)
from airflow_provider_launch.schedulers.kubernetes.scheduler import KubernetesScheduler
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

TTL = {"job": {"ttlSecondsAfterFinished": 90}}


def role(name: str = "main", **fields: Any) -> Role:
    return Role(name, **{"image": "repo/image:1", "entrypoint": "run", **fields})


def request(*roles: Role, environ: dict[str, str] | None = None, **opts: Any) -> KubernetesRequest:
    return build_request(AppDef("app", list(roles)), KubernetesOpts(**opts), "app-1", environ or {})


def job(*roles: Role, attempt: int = 0, **how: Any) -> dict[str, Any]:
    made = request(*roles, **how)
    return job_body(made, made.roles[0], attempt)


def pod(*roles: Role, **how: Any) -> dict[str, Any]:
    return job(*roles, **how)["spec"]["template"]["spec"]


def container(*roles: Role, **how: Any) -> dict[str, Any]:
    return pod(*roles, **how)["containers"][0]


def env(*roles: Role, **how: Any) -> dict[str, str]:
    return {item["name"]: item["value"] for item in container(*roles, **how)["env"] if "value" in item}


def test_the_entrypoint_of_the_image_stays_without_a_command() -> None:
    plain = container(role(entrypoint=None, args=["$HOME", macros.replica_id]))

    assert "command" not in plain
    assert plain["args"] == ["$$HOME", "$(LAUNCH_REPLICA_ID)"]


@pytest.mark.parametrize(
    ("cpu", "text"), [(2, "2"), (0.5, "500m"), ("250m", "250m"), (0.0001, "1m"), (0.1 + 0.2, "300m"), (1.5, "1500m")]
)
def test_cpus_are_written_as_kubernetes_does(cpu: Any, text: str) -> None:
    assert container(role(resource=Resource(cpu, 0, -1)))["resources"] == {"limits": {"cpu": text}}


def test_requests_may_be_below_the_limits_for_each_role() -> None:
    small = Resource(1, 0, 512, cpu_request=0.25, memMB_request=128)
    made = request(role("small", resource=small), role("large", resource=Resource(2, 0, 512)))
    bodies = [job_body(made, each, 0)["spec"]["template"]["spec"]["containers"][0] for each in made.roles]

    assert [each["resources"] for each in bodies] == [
        {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "128Mi"}},
        {"limits": {"cpu": "2", "memory": "512Mi"}},
    ]


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_an_app_that_the_server_cannot_store_is_refused() -> None:
    """The server's own error is about labels."""
    with pytest.raises(InvalidAppError, match=r"role 'main': its Job has 1\d{6} bytes, and 'kubernetes' stores"):
        refuse_too_large(request(role(args=["x" * 100_000] * 16)))
    refuse_too_large(request(role(args=["x" * 100_000] * 13)))
    refuse_too_large(request(role()))


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("app_id", ["a", "a-1", "x--y", "a" * 63])
def test_ids_that_can_name_a_service(app_id):
    assert APP_ID.fullmatch(app_id)


@pytest.mark.parametrize("app_id", ["", "1a", "A", "a_b", "a.b", "a-", "-a", "a" * 64, "a\n", "ä"])
def test_ids_that_cannot(app_id):
    assert not APP_ID.fullmatch(app_id)


@pytest.mark.parametrize("name", ["", "日本", "..", "9 lives", "Ünïcode", "x" * 300, "-a-"])
def test_the_name_of_any_app_gives_a_valid_id(name):
    assert APP_ID.fullmatch(f"{app_slug(name)}-b0123456789abc")


@pytest.mark.parametrize("replicas", [1, 10, 11, 100, 1001])
@pytest.mark.parametrize("attempt", [0, 1, 12])
@pytest.mark.parametrize("length", [1, 30, 63])
def test_a_host_name_is_never_too_long(length, attempt, replicas):
    name = job_name("a" * length, "r" * 40, attempt, replicas)

    assert len(f"{name}-{replicas - 1}") <= 63
    assert name[0].isalpha()


def test_long_names_that_differ_at_their_end_stay_apart():
    """Cut names have a hash of the full name."""
    names = {job_name("a" * 63, slug, attempt, 10) for slug in ("x", "y") for attempt in (0, 1)}

    assert len(names) == 4


def test_names_that_run_together_stay_apart():
    assert job_name("x-y", "z", 0, 1) != job_name("x", "y-z", 0, 1)
    assert job_name("x", role_slugs(["z-r1"])[0], 0, 1) != job_name("x", role_slugs(["z"])[0], 1, 1)


@pytest.mark.parametrize(("one", "other"), [("a/b", "a b"), ("Main", "main"), ("a.b", "a-b")])
def test_roles_that_would_share_a_job_are_refused(one, other):
    with pytest.raises(InvalidAppError, match=f"{one}.*{other}"):
        role_slugs([one, other])


# ---- bodies ----------------------------------------------------------------------------------------------------------


def test_job_of_a_plain_role():
    found = job(role(args=["--id", macros.replica_id], num_replicas=3))
    template = found["spec"].pop("template")
    found["metadata"]["annotations"].pop("launch.io/request")

    assert found == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "app-1--main",
            "labels": {
                "launch.io/managed": "true",
                "launch.io/app-id": "app-1",
                "launch.io/role": "main",
                "launch.io/attempt": "0",
            },
            "annotations": {
                "launch.io/app-name": "app",
                "launch.io/spec-hash": found["metadata"]["annotations"]["launch.io/spec-hash"],
                "launch.io/plan": '{"roles":[["main","main",3,"APPLICATION",0]],"time_limit_s":null,"grace_s":10,'
                '"queue":false,"leader":false}',
            },
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": 3,
            "parallelism": 3,
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "ttlSecondsAfterFinished": 86400,
        },
    }
    (main,) = template["spec"].pop("containers")
    assert template["spec"] == {
        "subdomain": "app-1",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "shareProcessNamespace": True,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    }
    assert main["command"] == ["run"]
    assert main["args"] == ["--id", "$(LAUNCH_REPLICA_ID)"]
    assert main["securityContext"] == {"allowPrivilegeEscalation": False}
    names = [variable["name"] for variable in main["env"]]
    assert names[0] == "LAUNCH_REPLICA_ID"
    assert len(names) == len(set(names)), "the last one of a name is used"


def test_retries_of_replicas_are_counted_by_kubernetes():
    found = job(role(max_retries=3, retry_policy=RetryPolicy.REPLICA))

    assert found["spec"]["backoffLimitPerIndex"] == 3
    assert container(role(max_retries=3, retry_policy=RetryPolicy.REPLICA))["env"][1] == {
        "name": "LAUNCH_ATTEMPT",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"}},
    }


def test_another_attempt_of_the_app_has_jobs_and_a_rank_0_of_its_own():
    found = job(role(max_retries=2), attempt=1)
    (main,) = found["spec"]["template"]["spec"]["containers"]
    values = {item["name"]: item.get("value") for item in main["env"]}

    assert found["metadata"]["name"] == "app-1--main-r1"
    assert found["spec"]["backoffLimitPerIndex"] == 0
    assert values["LAUNCH_ATTEMPT"] == "1"
    assert values["TORCHX_RANK0_HOST"] == "app-1--main-r1-0.app-1"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("$HOME", "$$HOME"),
        ("$$(HOME)", "$$(HOME)"),
        ("$(LAUNCH_REPLICA_ID)", "$$(LAUNCH_REPLICA_ID)"),
        (macros.replica_id, "$(LAUNCH_REPLICA_ID)"),
        (f"{macros.app_id}/{macros.replica_id}$", "app-1/$(LAUNCH_REPLICA_ID)$$"),
    ],
)
def test_dollars_of_the_user_are_no_references_of_kubernetes(given, sent):
    """Kubernetes would expand `$(NAME)`, and turn `$$` into `$`."""
    assert container(role(args=[given]))["args"] == [sent]
    assert env(role(env={"A": given}))["A"] == sent


def test_copied_variables_have_no_macros():
    found = env(role(), copy_env=["A"], environ={"A": macros.replica_id, "AIRFLOW_A": "secret"})

    assert found["A"] == "$${replica_id}"
    assert "AIRFLOW_A" not in found


def test_only_the_first_role_has_a_result():
    made = request(role("one"), role("two"))
    names = [
        {item["name"] for item in job_body(made, each, 0)["spec"]["template"]["spec"]["containers"][0]["env"]}
        for each in made.roles
    ]

    assert ["LAUNCH_RESULT_PATH" in found for found in names] == [True, False]


def test_resources_become_limits():
    found = container(role(resource=Resource(cpu=2, gpu=1, memMB=64, devices={"vpc.amazonaws.com/efa": 4})))

    assert found["resources"] == {
        "limits": {"cpu": "2", "memory": "64Mi", "nvidia.com/gpu": "1", "vpc.amazonaws.com/efa": "4"}
    }
    assert "resources" not in container(role(resource=Resource(cpu=0, gpu=0, memMB=-1)))


def test_an_instance_type_selects_nodes():
    resource = Resource(cpu=1, gpu=0, memMB=1, capabilities={"node.kubernetes.io/instance-type": "p4d.24xlarge"})

    assert pod(role(resource=resource), node_selector={"zone": "a"})["nodeSelector"] == {
        "zone": "a",
        "node.kubernetes.io/instance-type": "p4d.24xlarge",
    }


def test_mounts():
    mounts = [BindMount("/data", "/mnt", read_only=True), VolumeMount("claim", "/vol")]
    found = pod(role(mounts=mounts), shm_size_mb=256)

    assert found["volumes"] == [
        {"name": "mount-0", "hostPath": {"path": "/data"}},
        {"name": "mount-1", "persistentVolumeClaim": {"claimName": "claim", "readOnly": False}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}},
    ]
    assert found["containers"][0]["volumeMounts"] == [
        {"name": "mount-0", "mountPath": "/mnt", "readOnly": True},
        {"name": "mount-1", "mountPath": "/vol", "readOnly": False},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


@pytest.mark.parametrize(
    ("option", "value", "field", "sent"),
    [
        ("service_account", "runner", "serviceAccountName", "runner"),
        ("service_account", "runner", "automountServiceAccountToken", True),
        ("priority_class", "high", "priorityClassName", "high"),
        ("tolerations", [{"operator": "Exists"}], "tolerations", [{"operator": "Exists"}]),
        ("affinity", {"nodeAffinity": {}}, "affinity", {"nodeAffinity": {}}),
        ("image_pull_secrets", ["a", "b"], "imagePullSecrets", [{"name": "a"}, {"name": "b"}]),
        ("grace_s", 1.2, "terminationGracePeriodSeconds", 2),
        ("init", False, "shareProcessNamespace", None),
        ("security", "none", "securityContext", None),
    ],
)
def test_an_option_of_the_pod(option, value, field, sent):
    assert pod(role(), **{option: value}).get(field) == sent


@pytest.mark.parametrize(
    ("option", "value", "field", "sent"),
    [
        ("pull", "never", "imagePullPolicy", "Never"),
        ("pull", "always", "imagePullPolicy", "Always"),
        ("working_dir", "/work", "workingDir", "/work"),
        ("security", "none", "securityContext", None),
    ],
)
def test_an_option_of_the_container(option, value, field, sent):
    assert container(role(), **{option: value}).get(field) == sent


def test_variables_come_from_secrets_by_reference():
    made = container(role(env={"A": "1"}), env_secrets={"TOKEN": "training/token"}, env_from_secrets=["all"])

    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "training", "key": "token"}}}
    assert reference in made["env"]
    assert made["envFrom"] == [{"secretRef": {"name": "all"}}]


@pytest.mark.parametrize(
    ("place", "word"), [("training", "add the key"), ("/token", "must name a Secret"), ("training/", "add the key")]
)
def test_a_variable_of_no_secret_is_refused(place, word):
    with pytest.raises(InvalidAppError, match=word):
        request(role(), env_secrets={"TOKEN": place})


def test_a_variable_has_one_source():
    with pytest.raises(InvalidAppError, match="'main': TOKEN is in its env and in option env_secrets"):
        request(role(env={"TOKEN": "x"}), env_secrets={"TOKEN": "training/token"})


@pytest.mark.parametrize(
    ("option", "value", "field", "sent"),
    [
        ("ttl_s", 60, "ttlSecondsAfterFinished", 60),
        ("ttl_s", None, "ttlSecondsAfterFinished", None),
        ("time_limit_s", 5.0, "activeDeadlineSeconds", 75),
    ],
)
def test_an_option_of_the_job(option, value, field, sent):
    assert job(role(), **{option: value})["spec"].get(field) == sent


@pytest.mark.parametrize("how", [{"max_retries": 1}, {}])
@pytest.mark.parametrize(("opts", "ttl_s"), [({"ttl_s": 60}, 60), ({"ttl_s": None}, None), ({"overlay": TTL}, 90)])
def test_a_job_that_ends_before_its_app_shows_no_ttl_of_its_own(how, opts, ttl_s):
    """It would start at the end of the Job, and remove the Job before the app ends."""
    made = request(*([role(**how)] if how else [role(), role("b")]), **opts)
    found = job_body(made, made.roles[0], 0)

    assert "ttlSecondsAfterFinished" not in found["spec"]
    assert json.loads(plan_text(made))["ttl_s"] == ttl_s


def test_run_as_user_stays_restricted():
    assert pod(role(), run_as_user=1000, security="restricted")["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
    }


def test_a_disruption_may_be_a_failure():
    rules = job(role(), on_disruption="fail")["spec"]["podFailurePolicy"]["rules"]

    assert [rule["action"] for rule in rules] == ["FailJob"]


def test_labels_and_annotations_of_the_user_are_added_to_ours():
    found = job(role(), labels={"team": "a"}, annotations={"note": "b"}, queue="gpu")
    template = found["spec"]["template"]["metadata"]

    assert found["metadata"]["labels"]["team"] == template["labels"]["team"] == "a"
    assert found["metadata"]["annotations"]["note"] == template["annotations"]["note"] == "b"
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
    with pytest.raises(InvalidAppError, match=r"launch\.io/role"):
        request(role(), labels={"launch.io/role": "x"})


# ---- overlay ---------------------------------------------------------------------------------------------------------


def test_an_overlay_reaches_every_other_field():
    overlay = {
        "pod": {"hostNetwork": True, "volumes": [{"name": "x", "emptyDir": {}}], "enableServiceLinks": None},
        "container": {"env": [{"name": "E", "value": "$(LAUNCH_REPLICA_ID)"}], "resources": {"requests": {"cpu": "1"}}},
        "job": {"ttlSecondsAfterFinished": 90},
        "service": {"sessionAffinity": "None"},
    }
    made = request(role(resource=Resource(cpu=2, gpu=0, memMB=0)), overlay=overlay, shm_size_mb=1)
    found = job_body(made, made.roles[0], 0)
    spec = found["spec"]["template"]["spec"]

    assert spec["hostNetwork"] is True
    assert [volume["name"] for volume in spec["volumes"]] == ["shm", "x"]
    assert "enableServiceLinks" not in spec
    assert spec["containers"][0]["env"][-1] == {"name": "E", "value": "$(LAUNCH_REPLICA_ID)"}
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}
    assert found["spec"]["ttlSecondsAfterFinished"] == 90
    assert record_body(made)["spec"]["sessionAffinity"] == "None"
    assert "$(LAUNCH_REPLICA_ID)" in format_request(made)


@pytest.mark.parametrize(
    ("overlay", "word"),
    [
        ({"pods": {}}, "pods"),
        ({"pod": []}, "list"),
        ({"pod": {"restartPolicy": "Always"}}, "restartPolicy"),
        ({"job": {"suspend": False}}, "suspend"),
        ({"container": {"command": ["x"]}}, "command"),
        ({"pod": {"securityContext": ["x"]}}, "securityContext"),
        ({"job": {"ttlSecondsAfterFinished": "1h"}}, "whole number"),
        ({"job": {"ttlSecondsAfterFinished": 0}}, "60 or more, .* before its end is seen"),
    ],
)
def test_an_overlay_that_cannot_be_is_refused(overlay, word):
    with pytest.raises(InvalidAppError, match=word):
        request(role(), overlay=overlay)


# ---- refusals and records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": ""}, ["image"]),
        ({"max_retries": 1, "retry_policy": RetryPolicy.ROLE}, ["retry_policy", "ROLE"]),
        ({"mounts": [DeviceMount("/dev/a", "/dev/a")]}, ["mount", "resource.devices"]),
        ({"resource": Resource(cpu=1, gpu=0, memMB=1, devices={"fpga": 1})}, ["fpga", "resource.devices"]),
    ],
)
def test_unsupported_fields_are_refused(fields, words):
    with pytest.raises(InvalidAppError) as caught:
        KubernetesScheduler("test").submit_dryrun(AppDef("app", [role("trainer", **fields)]), {})

    assert all(word in str(caught.value) for word in ["trainer", "kubernetes", *words])


def test_a_queue_takes_no_replica_retries_in_a_group():
    retried = {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}
    request(role(**retried), queue="q")
    with pytest.raises(UnsupportedError, match=r"role 'two' has REPLICA retries.*use APPLICATION retries"):
        request(role("one"), role("two", **retried), queue="q")


@pytest.mark.parametrize(
    ("roles", "size"), [([role("one"), role("two", num_replicas=3)], "4"), ([role(max_retries=1)], "1")]
)
def test_an_app_of_several_jobs_is_queued_as_a_group_of_its_pods(roles, size):
    """Each attempt is another group; a label on the Job would let Kueue suspend it alone."""
    given = request(*roles, queue="gpu")
    for attempt, name in enumerate(["app-1", "app-1-r1"]):
        found = job_body(given, given.roles[0], attempt)
        pods = found["spec"]["template"]["metadata"]

        assert pods["labels"]["kueue.x-k8s.io/queue-name"] == "gpu"
        assert pods["labels"]["kueue.x-k8s.io/pod-group-name"] == name
        assert pods["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == size
        assert pods["annotations"]["kueue.x-k8s.io/retriable-in-group"] == "false"
        assert not any("kueue" in label for label in found["metadata"]["labels"])
        rules = [
            (rule["action"], rule["onPodConditions"][0]["type"]) for rule in found["spec"]["podFailurePolicy"]["rules"]
        ]
        assert rules == [("FailJob", "DisruptionTarget"), ("FailJob", "TerminationTarget")]


def noise(count: int) -> str:
    """Return a text that cannot be compressed well."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=count))


def test_an_app_that_no_annotation_holds_is_refused():
    refuse_too_large(request(role(args=[noise(100_000)])))
    with pytest.raises(InvalidAppError, match="and 'kubernetes' stores at most 240000; put large args"):
        refuse_too_large(request(role(args=[noise(400_000)])))


@pytest.mark.parametrize(
    "more", [{}, {"NODE": f"{FIELD_PATH}spec.nodeName", "A": "${app_id}", "B": "$$", "C": "$HOME"}]
)
def test_a_large_record_takes_variables_from_its_job(more: dict[str, str]) -> None:
    """A megabyte of random text fits into the Job only once."""
    texts = {f"DATA{number}": noise(100_000) + str(number) for number in range(10)}
    made = request(role(env={**texts, **more}, max_retries=1), role("other", env={"DATA0": "x"}))
    refuse_too_large(made)
    job = job_body(made, made.roles[0], 0)
    record = job["metadata"]["annotations"][Annotation.REQUEST]

    assert len(record) < 10_000
    assert unpacked(record, variables_in(job["spec"]["template"])) == made
    with pytest.raises(UNREADABLE):
        unpacked(record, {})


def test_the_service_keeps_no_value_that_may_be_a_secret():
    """Users without permission for Jobs or pods can often read Services, as can GitOps tools and exporters."""
    overlay = {
        "container": {"env": [{"name": "OVERLAID", "value": "hush-overlay"}]},
        "pod": {"initContainers": [{"name": "i", "args": ["hush-init"], "env": [{"name": "A", "value": "hush-init"}]}]},
    }
    made = request(
        role(env={"DB_PASSWORD": "hush-env"}, args=["--token", "hush-arg"]),
        environ={"HF_TOKEN": "hush-copied"},
        copy_env=["HF_*"],
        overlay=overlay,
    )
    kept = record_body(made)["metadata"]["annotations"]
    texts = [*kept.values(), str(unpacked(kept["launch.io/request"]).to_json())]

    assert "hush" not in str(texts)
    assert not unpacked(kept["launch.io/request"]).is_whole
    job_kept = job_body(made, made.roles[0], 0)["metadata"]["annotations"]["launch.io/request"]
    assert unpacked(job_kept) == made
    assert "hush-env" not in format_request(made)
    assert job_kept not in format_request(made)


def test_the_service_has_the_hash_of_its_launch() -> None:
    """A Service without it is ignored, and with another one a repeated launch is refused."""
    made = request(role())

    assert record_body(made)["metadata"]["annotations"][Annotation.SPEC_HASH] == made.spec_hash


def test_a_packed_request_is_the_same_again():
    made = request(role(env={"A": "ä\n日"}, port_map={"p": 0}, max_retries=2), role("two"), time_limit_s=5.0)

    assert unpacked(packed(made)) == made
    assert format_request(unpacked(packed(made))) == format_request(made)


def test_shown_requests_hide_secrets_and_are_json():
    text = format_request(request(role(env={"API_TOKEN": "hush", "LEVEL": "info"})))
    shown = text[text.index("POST jobs\n") + len("POST jobs\n") :]

    assert "hush" not in text
    assert '"info"' in text
    json.loads(shown)


def test_other_containers_are_shown_without_their_secrets():
    env = [{"name": "DB_PASSWORD", "value": "hush"}, {"name": "A", "value": "b"}]
    parts = {
        "containers": [{"name": "side", "image": "i"}],
        "initContainers": [{"name": "a", "image": "i", "env": env}],
    }
    made = request(role(), overlay={"pod": parts})
    text = format_request(made)

    assert "hush" not in text
    assert '"b"' in text
    sent = job_body(made, made.roles[0], 0)["spec"]["template"]["spec"]["containers"]
    assert {"name": "side", "image": "i", "terminationMessagePolicy": "FallbackToLogsOnError"} in sent


def test_the_pod_of_the_dry_run_has_the_index_that_its_variables_name():
    found = pod_body(job(role()))

    assert found["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "0"
    assert found["metadata"]["generateName"] == "app-1--main-"


def test_a_request_that_a_namespace_restricts_is_the_restricted_one():
    """Only the value of the option may differ from an explicit request of the user."""
    made, asked = (request(role(), run_as_user=1000, security=security) for security in ("auto", "restricted"))

    assert restricted(made).roles == asked.roles
    assert made.roles != asked.roles


def test_an_overlay_wins_over_the_restrictions_of_a_namespace():
    made = request(role(), overlay={"pod": {"securityContext": {"runAsNonRoot": False}}})

    assert restricted(made).roles[0].pod["securityContext"]["runAsNonRoot"] is False


def test_another_attempt_with_a_digest_differs_only_in_the_image():
    """The first role has the path of the result, the policy of the leader, and the values for later attempts."""
    made = request(role(max_retries=1), role("peer"), success_policy="leader")
    digest = dataclasses.replace(made.roles[0], container={**made.roles[0].container, "image": "repo/image@sha256:aa"})
    first, later = (job_body(made, each, 1) for each in (made.roles[0], digest))
    later["spec"]["template"]["spec"]["containers"][0]["image"] = "repo/image:1"

    assert later == first


# ---- labels ----------------------------------------------------------------------------------------------------------

OWNER = {"dag_id": "etl", "task_id": "g.train", "run_id": "manual__2026-01-01T00:00:00+00:00", "map_index": -1}


def owned(**opts: Any) -> KubernetesRequest:
    app = AppDef("app", [role()], metadata={"airflow": {**OWNER, "try_number": 2}})
    return build_request(app, KubernetesOpts(**opts), "app-1", {})


def test_every_object_carries_the_task_as_other_operators_label_it():
    given = owned(labels={"team": "a", "note": "übergrößen & mehr"})
    body = job_body(given, given.roles[0], 0)
    for found in (body, body["spec"]["template"], record_body(given)):
        labels, annotations = found["metadata"]["labels"], found["metadata"]["annotations"]

        assert (labels["dag_id"], labels["task_id"], labels["try_number"], labels["team"]) == (
            "etl",
            "g.train",
            "2",
            "a",
        )
        assert "map_index" not in labels, "the task is not mapped"
        assert re.fullmatch(r"manual__2026-01-01T00_00_00_00_00-\w{13,14}", labels["run_id"])
        assert annotations["run_id"] == OWNER["run_id"]
    pods = body["spec"]["template"]["metadata"]
    assert re.fullmatch(r"bergr_en_mehr-\w{13,14}", pods["labels"]["note"])
    assert pods["annotations"]["note"] == "übergrößen & mehr"
    assert "team" not in pods["annotations"]


def test_the_label_of_the_user_wins():
    assert owned(labels={"dag_id": "mine"}).labels["dag_id"] == "mine"


def test_a_try_that_adopts_the_app_asks_for_the_same():
    first = AppDef("app", [role()], metadata={"airflow": {**OWNER, "try_number": 1}})
    later = AppDef("app", [role()], metadata={"airflow": {**OWNER, "try_number": 2}})
    hashes = {build_request(app, KubernetesOpts(), "app-1", {}).spec_hash for app in (first, later)}

    assert len(hashes) == 1


def test_a_record_has_each_variable_once() -> None:
    """A function and its arguments are a variable, which would fill the record twice."""
    made = request(role(env={"DATA": "x y z", "A": ""}), role("other"))
    text = zlib.decompress(base64.b64decode(packed(made))).decode()
    earlier = base64.b64encode(zlib.compress(json.dumps(made.to_json()).encode())).decode()

    assert text.count("x y z") == 1
    assert unpacked(packed(made)) == made
    assert unpacked(earlier) == made
