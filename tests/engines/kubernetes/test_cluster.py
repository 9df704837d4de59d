"""The cluster supports the features that tests need."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kubernetes import client as k8s
from kubernetes import config, watch

from tests.engines.kubernetes.process import until
from tests.faults import Fault, drop_answer

pytestmark = pytest.mark.engine("kubernetes")


def job(name: str, image: str, script: str, *, completions: int = 1, **pod: object) -> dict:
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}
    container["env"] = [
        {
            "name": "INDEX",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-completion-index']"}},
        }
    ]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **pod}
    indexed = {"completions": completions, "parallelism": completions, "completionMode": "Indexed", "backoffLimit": 0}
    return {"metadata": {"name": name}, "spec": {**indexed, "template": {"spec": spec}}}


def finished(batch: k8s.BatchV1Api, name: str, namespace: str) -> bool:
    conditions = batch.read_namespaced_job(name, namespace).status.conditions or []
    assert "Failed" not in {one.type for one in conditions}, conditions
    return "Complete" in {one.type for one in conditions}


def logs(client: k8s.ApiClient, name: str, namespace: str) -> dict[str, str]:
    """Return index -> output of the pod."""
    core = k8s.CoreV1Api(client)
    pods = core.list_namespaced_pod(namespace, label_selector=f"job-name={name}").items
    index = "batch.kubernetes.io/job-completion-index"
    # Some versions of the package return decoded logs as "b'...'".
    return {
        pod.metadata.annotations[index]: core.read_namespaced_pod_log(
            pod.metadata.name, namespace, _preload_content=False
        ).data.decode()
        for pod in pods
    }


def test_a_job_runs(kubernetes_engine, kubernetes_namespace):
    batch = k8s.BatchV1Api(kubernetes_engine.client)
    batch.create_namespaced_job(kubernetes_namespace, job("hello", kubernetes_engine.image, "echo hello"))

    until(lambda: finished(batch, "hello", kubernetes_namespace), 120, "the Job does not end")

    assert logs(kubernetes_engine.client, "hello", kubernetes_namespace) == {"0": "hello\n"}


def test_replicas_reach_the_first_one_by_name(kubernetes_engine, kubernetes_namespace):
    """DNS names and connections between pods, which a Docker engine on the same host forbids by default."""
    client, namespace = kubernetes_engine.client, kubernetes_namespace
    port = {"port": 1, "name": "none"}
    k8s.CoreV1Api(client).create_namespaced_service(
        namespace,
        {
            "metadata": {"name": "meet"},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"job-name": "meet"},
                "ports": [port],
            },
        },
    )
    script = """
        if [ $INDEX = 0 ]; then echo met | nc -l -p 7000; exit; fi
        for i in $(seq 100); do
            nc -w 2 meet-0.meet.$0.svc.cluster.local 7000 </dev/null >/tmp/out 2>/dev/null && [ -s /tmp/out ] && break
            sleep 0.3
        done
        cat /tmp/out
    """.replace("$0", namespace)
    batch = k8s.BatchV1Api(client)
    batch.create_namespaced_job(
        namespace, job("meet", kubernetes_engine.image, script, completions=2, subdomain="meet")
    )

    until(lambda: finished(batch, "meet", namespace), 120, "the replicas do not meet")

    assert logs(client, "meet", namespace)["1"] == "met\n"


def test_the_python_image_runs(kubernetes_engine, kubernetes_namespace):
    batch = k8s.BatchV1Api(kubernetes_engine.client)
    script = (
        'python3 -c \'import json, ssl, pathlib; print(sorted(p.name for p in pathlib.Path("/").glob("launch_*")))\''
    )
    batch.create_namespaced_job(kubernetes_namespace, job("python", kubernetes_engine.python_image(), script))

    until(lambda: finished(batch, "python", kubernetes_namespace), 120, "the Job does not end")

    output = logs(kubernetes_engine.client, "python", kubernetes_namespace)
    assert output == {"0": "['launch_wordcount.md', 'launch_wordcount.py']\n"}


def test_a_limited_user_may_do_what_its_rules_show(kubernetes_engine, kubernetes_make_namespace):
    own, other = kubernetes_make_namespace(), kubernetes_make_namespace()
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    with config.new_client_from_config(str(kubernetes_engine.limited(own, rules))) as client:
        core = k8s.CoreV1Api(client)
        assert core.list_namespaced_pod(own).items == []
        for forbidden in (
            lambda: core.list_namespaced_pod(other),
            lambda: core.list_namespaced_service(own),
            lambda: core.delete_collection_namespaced_pod(own),
        ):
            with pytest.raises(k8s.ApiException, match="403"):
                forbidden()

        kubernetes_engine.limited(own, [{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}])
        until(lambda: not refused(lambda: core.list_namespaced_service(own)), 10, "new rules do not hold")
        assert refused(lambda: core.list_namespaced_pod(own))


def refused(call) -> bool:
    try:
        call()
    except k8s.ApiException as error:
        return error.status == 403
    return False


def test_a_namespace_keeps_the_labels_of_the_test(kubernetes_engine, kubernetes_make_namespace):
    """Pod Security is enabled by label."""
    namespace = kubernetes_make_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})
    pod = job("x", kubernetes_engine.image, "true")["spec"]["template"] | {"metadata": {"name": "x"}}

    with pytest.raises(k8s.ApiException, match="violates PodSecurity"):
        k8s.CoreV1Api(kubernetes_engine.client).create_namespaced_pod(namespace, pod)


def test_the_proxy_breaks_what_it_is_asked_to_break(kubernetes_engine, kubernetes_namespace, kubernetes_proxy):
    """The answer is lost but the object exists: a scheduler must adopt it."""
    kubernetes_proxy.add(Fault(drop_answer(), "POST", "/configmaps$"))
    with config.new_client_from_config(str(kubernetes_proxy.kubeconfig)) as client:
        client.configuration.retries = False
        core = k8s.CoreV1Api(client)
        with pytest.raises(Exception, match=r"Connection aborted|without response"):
            core.create_namespaced_config_map(kubernetes_namespace, {"metadata": {"name": "lost"}})

        with pytest.raises(k8s.ApiException, match="409"):
            core.create_namespaced_config_map(kubernetes_namespace, {"metadata": {"name": "lost"}})
    assert kubernetes_proxy.count("POST", "/configmaps$") == 2


@pytest.mark.engine("kube-apiserver")
def test_an_api_server_of_a_test_is_killed_and_started(kubernetes_api_server, kubernetes_engine):
    """Other servers continue, so that parallel tests are not affected."""
    with config.new_client_from_config(str(kubernetes_api_server.kubeconfig)) as client:
        client.configuration.retries = 0
        core = k8s.CoreV1Api(client)
        before = core.read_namespace("default").metadata.uid

        kubernetes_api_server.kill()
        with pytest.raises(Exception, match="refused"):
            core.read_namespace("default")
        assert k8s.CoreV1Api(kubernetes_engine.client).read_namespace("default").metadata.uid == before

        kubernetes_api_server.start()
        assert core.read_namespace("default").metadata.uid == before


def test_what_killed_tests_left_is_found_by_label(kubernetes_engine, kubernetes_make_namespace):
    """Other namespaces and those of running tests stay; only a person calls this."""
    namespace = kubernetes_make_namespace()

    found = k8s.CoreV1Api(kubernetes_engine.client).list_namespace(label_selector="launch.io/tests").items

    assert namespace in {one.metadata.name for one in found}
    assert "default" not in {one.metadata.name for one in found}


def test_status_names_the_cluster(kubernetes_engine, checkout):
    command = [sys.executable, "-m", "tests.engines.kubernetes", "status"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)

    assert done.stdout == f"KUBECONFIG={kubernetes_engine.kubeconfig}\n"


def test_a_watch_passes_through_the_proxy(kubernetes_engine, kubernetes_make_namespace):
    """An endless answer must be streamed, also for a user with few permissions."""
    namespace = kubernetes_make_namespace()
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch", "create"]}]
    seen = []
    with (
        kubernetes_engine.proxy(kubernetes_engine.limited(namespace, rules), namespace) as proxy,
        config.new_client_from_config(str(proxy.kubeconfig)) as client,
    ):
        core, stream = k8s.CoreV1Api(client), watch.Watch()
        for event in stream.stream(core.list_namespaced_config_map, namespace, timeout_seconds=30):
            seen.append((event["type"], event["object"].metadata.name))
            if seen == [("ADDED", "kube-root-ca.crt")]:
                core.create_namespaced_config_map(namespace, {"metadata": {"name": "second"}})
            elif len(seen) == 2:
                stream.stop()

        assert seen == [("ADDED", "kube-root-ca.crt"), ("ADDED", "second")]
        with proxy.refused(), pytest.raises(Exception, match="refused"):
            core.list_namespaced_config_map(namespace, _request_timeout=5)
