"""Options that speak of pods and containers: further volumes and containers, pod templates, and options by role."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from kubernetes import client as k8s

from airflow_provider_launch.runner.api import Runner
from airflow_provider_launch.schedulers.kubernetes.manifests import job_body
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.request import build_request, packed, unpacked
from airflow_provider_launch.schedulers.kubernetes.scheduler import create_scheduler
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.specs import AppDef, InvalidAppError, Resource, Role
from airflow_provider_launch.specs.overlays import set_overlay


def role(name: str = "main", **fields: Any) -> Role:
    return Role(name, **{"image": "repo/image:1", "entrypoint": "run", "resource": Resource(1, 0, 64), **fields})


def templates(*roles: Role, **opts: Any) -> list[dict[str, Any]]:
    """Return the pod template of each role, as the scheduler that users call builds it."""
    scheduler = create_scheduler("tests", kubeconfig_path="/nowhere", namespace="x")
    info = scheduler.submit_dryrun(AppDef("app", [*roles]), opts, app_id="app-1")
    request = unpacked(packed(info.request))
    scheduler.close()
    return [job_body(request, each, 0)["spec"]["template"] for each in request.roles]


def pod(*roles: Role, **opts: Any) -> dict[str, Any]:
    return templates(*(roles or [role()]), **opts)[0]["spec"]


def main(*roles: Role, **opts: Any) -> dict[str, Any]:
    return pod(*roles, **opts)["containers"][0]


# ---- options ---------------------------------------------------------------------------------------------------------


def test_volumes_containers_hosts_ports_and_runtime_reach_the_pod() -> None:
    volumes = [
        {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        {"name": "conf", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "keys"}}]}},
    ]
    mounts = [{"name": "data", "mountPath": "/data", "subPath": "a/b"}]
    init = {"name": "fetch", "image": "i", "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]}
    found = pod(
        volumes=volumes,
        volume_mounts=mounts,
        init_containers=[init],
        sidecars=[{"name": "proxy", "image": "p"}],
        host_aliases=[{"ip": "10.1.2.3", "hostnames": ["db"]}],
        runtime_class="gvisor",
        ports=[{"name": "http", "containerPort": 8080}],
    )

    assert found["volumes"] == volumes
    assert [each["name"] for each in found["containers"]] == ["main", "proxy"]
    assert found["containers"][0]["volumeMounts"] == mounts
    assert found["containers"][0]["ports"] == [{"name": "http", "containerPort": 8080}]
    assert found["initContainers"] == [{**init, "terminationMessagePolicy": "FallbackToLogsOnError"}]
    assert found["hostAliases"] == [{"ip": "10.1.2.3", "hostnames": ["db"]}]
    assert found["runtimeClassName"] == "gvisor"


def test_variables_come_from_configmaps_and_secrets() -> None:
    found = main(
        env_configmaps={"MODE": "settings/mode"},
        env_secrets={"TOKEN": "keys/token"},
        env_from_configmaps=["more"],
        env_from_secrets=["most"],
    )

    assert {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}} in found["env"]
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}} in found["env"]
    assert found["envFrom"] == [{"configMapRef": {"name": "more"}}, {"secretRef": {"name": "most"}}]


@pytest.mark.parametrize(
    ("opts", "text"),
    [
        ({"env_configmaps": {"A": "settings"}}, "option env_configmaps: A must name a ConfigMap and its key"),
        ({"env_configmaps": {"LAUNCH_X": "a/b"}}, "variable LAUNCH_X is set by the launcher"),
        ({"sidecars": [{"name": "main", "image": "i"}]}, "option sidecars: a container is named 'main'"),
        ({"init_containers": [{"image": "i"}]}, "option init_containers: a container is named None"),
        (
            {"image_pull_secrets": [{"secret": "a"}]},
            "an object has the fields secret; it needs 'name' and nothing else",
        ),
        ({"by_role": {"other": {}}}, "option by_role: the app has no role 'other'; its roles are 'main'"),
        ({"by_role": {"main": {"queue": "q"}}}, "option by_role: role 'main' has 'queue', which applies to the whole"),
        (
            {"by_role": {"main": {"overlay": {"job": {"suspend": True}}}}},
            "role 'main' has overlay.job; use an overlay V1",
        ),
        (
            {"by_role": {"main": {"overlay": {"service": {"type": "x"}}}}},
            "role 'main' has overlay.service; set it outs",
        ),
        ({"by_role": {"main": {"tolerance": 1}}}, "option by_role: role 'main': unknown option 'tolerance'"),
        ({"by_role": {"main": {"shm_size_mb": -1}}}, "option by_role: role 'main': .*shm_size_mb"),
    ],
)
def test_wrong_options_are_refused(opts: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidAppError, match=text):
        pod(**opts)


def test_objects_of_the_kubernetes_package_are_taken_as_dicts() -> None:
    """DAGs with KubernetesPodOperator are full of them."""
    volume = k8s.V1Volume(name="v", persistent_volume_claim=k8s.V1PersistentVolumeClaimVolumeSource(claim_name="c"))
    sidecar = k8s.V1Container(name="proxy", image="p", env=[k8s.V1EnvVar(name="A", value="1")])
    term = k8s.V1NodeSelectorTerm(
        match_expressions=[k8s.V1NodeSelectorRequirement(key="gpu", operator="In", values=["a100"])]
    )
    affinity = k8s.V1Affinity(
        node_affinity=k8s.V1NodeAffinity(
            required_during_scheduling_ignored_during_execution=k8s.V1NodeSelector(node_selector_terms=[term])
        )
    )
    found = pod(
        tolerations=[k8s.V1Toleration(key="gpu", operator="Exists", effect="NoSchedule")],
        affinity=affinity,
        volumes=[volume],
        volume_mounts=[k8s.V1VolumeMount(name="v", mount_path="/v", sub_path="a")],
        sidecars=[sidecar],
        image_pull_secrets=[k8s.V1LocalObjectReference(name="registry"), "other"],
        overlay={"pod": k8s.V1PodSpec(containers=[], host_network=True)},
    )

    assert found["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert found["affinity"] == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}]}]
            }
        }
    }
    assert found["volumes"] == [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    assert found["containers"][0]["volumeMounts"] == [{"name": "v", "mountPath": "/v", "subPath": "a"}]
    assert found["containers"][1]["env"] == [{"name": "A", "value": "1"}]
    assert found["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert found["hostNetwork"] is True


def test_an_overlay_of_a_role_may_be_an_object_of_the_package() -> None:
    one, two = role("one"), role("two")
    set_overlay(one, "kubernetes", "V1Pod", {"spec": {"hostAliases": [k8s.V1HostAlias(ip="1.2.3.4", hostnames=["a"])]}})
    two.metadata["kubernetes"] = {"V1Pod": {"spec": {"tolerations": [k8s.V1Toleration(key="x")]}}, "V1Job": {}}
    first, second = templates(one, two)

    assert first["spec"]["hostAliases"] == [{"ip": "1.2.3.4", "hostnames": ["a"]}]
    assert second["spec"]["tolerations"] == [{"key": "x"}]


def test_options_differ_by_role() -> None:
    """A head without GPUs, and workers on tainted nodes."""
    taint = {"key": "gpu", "operator": "Exists"}
    head, worker = templates(
        role("head"),
        role("worker"),
        node_selector={"pool": "cpu"},
        shm_size_mb=64,
        by_role={
            "worker": {"nodeSelector": {"pool": "gpu"}, "tolerations": [k8s.V1Toleration(**taint)], "init": False}
        },
    )

    assert (head["spec"]["nodeSelector"], worker["spec"]["nodeSelector"]) == ({"pool": "cpu"}, {"pool": "gpu"})
    assert "tolerations" not in head["spec"]
    assert worker["spec"]["tolerations"] == [taint]
    assert head["spec"]["shareProcessNamespace"] is True
    assert "shareProcessNamespace" not in worker["spec"]
    assert worker["spec"]["volumes"] == head["spec"]["volumes"]


def test_the_hash_of_an_older_app_does_not_change() -> None:
    """A retry after an upgrade must find the app that the older version launched."""
    app, later = AppDef("app", [role()]), {"by_role", "pod_template", "volumes", "env_configmaps"}
    older = {name: value for name, value in KubernetesOpts().items() if name not in LATER}

    assert later < LATER
    assert spec_hash(app, KubernetesOpts()) == spec_hash(app, older)
    assert spec_hash(app, KubernetesOpts(volumes=[{"name": "v"}])) != spec_hash(app, older)


LATER = {
    "env_configmaps", "env_from_configmaps", "volumes", "volume_mounts", "init_containers", "sidecars", "host_aliases",
    "ports", "runtime_class", "pod_template", "by_role", "result_image", "namespace", "context",
}  # fmt: skip

# ---- the container of results ----------------------------------------------------------------------------------------

NATIVE = [{"name": f"proxy-{k}", "image": "proxy:1", "restartPolicy": "Always"} for k in range(3)]


def test_only_pods_of_the_first_role_have_the_container_of_results() -> None:
    first, other = templates(role("first"), role("other"), result_image="busybox:1", init_containers=NATIVE)
    main, result = first["spec"]["containers"][0], first["spec"]["initContainers"][-1]
    env = {each["name"]: each.get("value") for each in main["env"]}

    assert (result["name"], result["image"], result["restartPolicy"]) == ("launch-result", "busybox:1", "Always")
    assert result["resources"] == {"limits": {"cpu": "100m", "memory": "32Mi"}}
    assert result["volumeMounts"] == main["volumeMounts"]
    assert main["terminationMessagePath"] == env["TORCHELASTIC_ERROR_FILE"] == "/dev/termination-log"
    assert env["LAUNCH_RESULT_PATH"] == "/airflow/xcom/return.json"
    assert "launch-result" not in json.dumps(other)


def test_without_the_option_pods_have_no_container_of_results() -> None:
    (plain,) = templates(role())

    assert "launch-result" not in json.dumps(plain)
    assert plain["spec"]["containers"][0]["terminationMessagePath"] == "/airflow/xcom/return.json"


@pytest.mark.parametrize(
    ("security", "run_as_user", "user"), [("restricted", None, 65534), ("restricted", 7, None), ("auto", None, None)]
)
def test_the_container_of_results_is_not_root_where_pods_must_not_be(
    security: str, run_as_user: int | None, user: int | None
) -> None:
    (body,) = templates(role(), result_image="busybox:1", security=security, run_as_user=run_as_user)

    assert body["spec"]["initContainers"][0]["securityContext"].get("runAsUser") == user


@pytest.mark.parametrize(
    "opts",
    [
        {"container_logs": ["launch-result"], "result_image": "busybox:1"},
        {"sidecars": [{"name": "launch-result", "image": "x"}]},
        {"init_containers": [{"name": "launch-result", "image": "x"}], "result_image": "busybox:1"},
        {"overlay": {"pod": {"containers": [{"name": "launch-result", "image": "x"}]}}},
    ],
)
def test_the_name_of_the_container_of_results_is_reserved(opts: dict[str, Any]) -> None:
    with pytest.raises(InvalidAppError, match=r"'launch-result'.*result_image"):
        templates(role(), **opts)


@pytest.mark.parametrize(
    ("containers", "opts", "kept"),
    [(2, {}, None), (3, {}, 3072), (3, {"result_image": "busybox:1"}, None)],
    ids=["three containers", "four containers", "with the option"],
)
def test_a_pod_of_more_than_three_containers_gets_a_warning(
    containers: int, opts: dict[str, Any], kept: int | None
) -> None:
    with Runner("test", {"kubernetes": create_scheduler}) as runner:
        info = runner.dryrun(
            AppDef("app", [role(), role("peer")]), "kubernetes", {"init_containers": NATIVE[:containers], **opts}
        )

    assert bool(info.warnings) is (kept is not None)
    if kept:
        assert f"its pods have 4 containers, so Kubernetes keeps only {kept} bytes" in info.warnings[0]
        assert "option result_image" in str(info)


# ---- pod templates ---------------------------------------------------------------------------------------------------

TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "placeholder", "labels": {"team": "x"}, "annotations": {"note": "a b"}},
    "spec": {
        "restartPolicy": "Never",
        "serviceAccountName": "trainer",
        "automountServiceAccountToken": True,
        "tolerations": [{"key": "gpu"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [
            {
                "name": "base",
                "image": "template/image:1",
                "command": ["template-program"],
                "args": ["template-arg"],
                "env": [{"name": "A", "value": "template"}, {"name": "B", "value": "template"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"requests": {"ephemeral-storage": "1Gi"}},
                "imagePullPolicy": "Always",
            },
            {"name": "proxy", "image": "proxy:1"},
        ],
    },
}


@pytest.mark.parametrize("form", ["dict", "object", "file", "overlay"])
def test_the_container_base_of_a_template_becomes_the_main_one(form: str, tmp_path) -> None:
    """A second copy of the program would write the same data twice."""
    given: Any = TEMPLATE
    one = role(env={"A": "role"}, args=["arg"])
    if form == "object":
        given = k8s.ApiClient()._ApiClient__deserialize(TEMPLATE, "V1Pod")
    elif form == "file":
        (tmp_path / "pod.yaml").write_text(yaml.safe_dump(TEMPLATE))
        given = str(tmp_path / "pod.yaml")
    if form == "overlay":
        one.metadata["kubernetes"] = {"V1Pod": TEMPLATE, "V1Job": {}}
    (found,) = templates(one, **({} if form == "overlay" else {"pod_template": given}))
    first, second = found["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in first["env"]}

    assert (first["name"], second["name"]) == ("main", "proxy")
    assert (first["image"], first["command"], first["args"]) == ("repo/image:1", ["run"], ["arg"])
    assert (env["A"], env["B"], env["LAUNCH_ROLE"]) == ("role", "template", "main")
    assert first["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert first["resources"] == {
        "limits": {"cpu": "1", "memory": "64Mi"},
        "requests": {"ephemeral-storage": "1Gi"},
    }
    assert first["imagePullPolicy"] == "Always"
    assert found["spec"]["serviceAccountName"] == "trainer"
    assert found["spec"]["automountServiceAccountToken"] is True
    assert found["spec"]["restartPolicy"] == "Never"
    assert found["spec"]["tolerations"] == [{"key": "gpu"}]
    assert found["metadata"]["labels"]["team"] == "x"
    assert found["metadata"]["annotations"]["note"] == "a b"
    assert "template-program" not in json.dumps(found)


def test_a_role_may_leave_program_and_image_to_the_template() -> None:
    found = main(role(image="", entrypoint=None), pod_template=TEMPLATE)

    assert (found["image"], found["command"], found["args"]) == (
        "template/image:1", ["template-program"], ["template-arg"],
    )  # fmt: skip
    assert main(role(entrypoint=None, args=["mine"]), pod_template=TEMPLATE)["args"] == ["mine"]


def test_options_override_the_template() -> None:
    found = pod(pod_template=TEMPLATE, service_account="mine", tolerations=[{"key": "cpu"}], pull="never")

    assert found["serviceAccountName"] == "mine"
    assert found["tolerations"] == [{"key": "gpu"}, {"key": "cpu"}]
    assert found["containers"][0]["imagePullPolicy"] == "Never"


def test_the_only_container_of_a_template_may_have_any_name() -> None:
    document = {"kind": "Pod", "spec": {"containers": [{"name": "trainer", "image": "i", "tty": True}]}}
    found = pod(pod_template=document)

    assert [each["name"] for each in found["containers"]] == ["main"]
    assert found["containers"][0]["tty"] is True


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"containers": [{"name": "a"}, {"name": "b"}]}, "its containers are 'a', 'b'; name the one .* 'base'"),
        ({"containers": []}, "its containers are none"),
        ({"restartPolicy": "OnFailure"}, "restartPolicy must be Never, .*use max_retries"),
        ({"activeDeadlineSeconds": 5}, "spec.activeDeadlineSeconds cannot be used; use option time_limit_s"),
        ({"hostname": "x"}, "spec.hostname cannot be used"),
        ({"containers": [{"name": "base", "env": [{"name": "LAUNCH_ROLE", "value": "x"}]}]}, "LAUNCH_ROLE is set by"),
    ],
)
def test_a_template_that_cannot_be_kept_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidAppError, match=text):
        pod(pod_template={"kind": "Pod", "spec": {"containers": [{"name": "base"}], **change}})


def test_other_parts_of_a_template_are_refused_by_name() -> None:
    spec = {"containers": [{"name": "base"}]}
    with pytest.raises(InvalidAppError, match=r"metadata\.namespace cannot be used; use option namespace"):
        pod(pod_template={"kind": "Pod", "metadata": {"namespace": "x"}, "spec": spec})
    with pytest.raises(InvalidAppError, match=r"option pod_template\.status cannot be used; leave it out"):
        pod(pod_template={"kind": "Pod", "status": {}, "spec": spec})
    with pytest.raises(InvalidAppError, match="kind is 'Job'"):
        pod(pod_template={"kind": "Job", "spec": {}})
    with pytest.raises(InvalidAppError, match=r"overlay file '/nowhere.yaml' cannot be read"):
        pod(pod_template="/nowhere.yaml")


def test_a_role_without_any_image_is_refused() -> None:
    with pytest.raises(InvalidAppError, match="role 'main' has no image, which 'kubernetes' needs"):
        build_request(AppDef("app", [role(image="")]), KubernetesOpts(), "app-1", {})


# ---- in the cluster --------------------------------------------------------------------------------------------------


@pytest.mark.engine("kubernetes")
def test_volumes_containers_and_a_template_work_in_the_cluster(kubernetes_apps) -> None:
    """An init container writes into a volume, and the program of the template's only container reads it."""
    apps = kubernetes_apps
    share = {"name": "share", "mountPath": "/share"}
    fetch = {"name": "fetch", "image": apps.image, "command": ["sh", "-c", "echo fetched | tee /share/x"],
             "volumeMounts": [share], "imagePullPolicy": "Never"}  # fmt: skip
    template = {"kind": "Pod", "spec": {"containers": [{"name": "base", "env": [{"name": "MODE", "value": "t"}]}]}}
    app_id = apps.start(
        apps.sh("cat /share/x; echo $MODE; grep -c 10.1.2.3 /etc/hosts"),
        volumes=[k8s.V1Volume(name="share", empty_dir=k8s.V1EmptyDirVolumeSource())],
        volume_mounts=[share],
        init_containers=[fetch],
        host_aliases=[{"ip": "10.1.2.3", "hostnames": ["db"]}],
        pod_template=template,
        container_logs=["fetch"],
    )
    found = apps.end(app_id)

    assert found.state.name == "SUCCEEDED"
    assert apps.lines(app_id)[-3:] == ["fetched\n", "t\n", "1\n"]
