"""The task `true` in a pod: ours, KubernetesPodOperator, and a Job and a pod alone."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import kubernetes_cluster
import peers
from kubernetes.client import BatchV1Api, CoreV1Api  # noqa: TID253 - a measure of it
from rows import row
from task_pairs import Cost, median, span, task

PAIRS = 5
SIDES = ("job", "pod", "job-deferrable", "pod-deferrable")


def timed(create: Callable[[], Any], is_over: Callable[[str], bool]) -> float:
    """Return the seconds from creation to end, polled each 20 ms."""
    start = time.perf_counter()
    name = create().metadata.name
    while not is_over(name):
        time.sleep(0.02)
    return time.perf_counter() - start


with kubernetes_cluster.use("task `true` on Kubernetes") as client:
    batch, core, namespace = BatchV1Api(client), CoreV1Api(client), kubernetes_cluster.NAMESPACE
    pythons = {"job": sys.executable, "pod": peers.kubernetes_python()}
    container = {"name": "main", "image": kubernetes_cluster.IMAGE, "command": ["true"], "imagePullPolicy": "Never"}
    pod = {"restartPolicy": "Never", "containers": [container]}

    def a_job() -> float:
        body = {"metadata": {"generateName": "bench-"}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}
        return timed(
            lambda: batch.create_namespaced_job(namespace, body),
            lambda name: bool(batch.read_namespaced_job(name, namespace).status.completion_time),
        )

    def a_pod() -> float:
        return timed(
            lambda: core.create_namespaced_pod(namespace, {"metadata": {"generateName": "bench-"}, "spec": pod}),
            lambda name: core.read_namespaced_pod(name, namespace).status.phase == "Succeeded",
        )

    found: dict[str, list[Cost]] = {side: [] for side in SIDES}
    own: dict[str, list[float]] = {"job": [], "pod": []}
    # The first round writes byte code and creates lasting objects, and is dropped.
    for number in range(PAIRS + 1):
        for side in SIDES if number % 2 else reversed(SIDES):
            costs, log = task(side, 1, "true", pythons[side.partition("-")[0]])
            log.unlink()
            if number:
                found[side] += costs
        for name, once in (("job", a_job), ("pod", a_pod)):
            if number:
                own[name].append(once())
    version = peers.version(pythons["pod"], peers.KUBERNETES)

alone = {name: statistics.median(times) for name, times in own.items()}
row("a Job `true` by itself", alone["job"], note=f"create to complete; a pod by itself: {alone['pod']:.2f} s")
for mode in ("", "-deferrable"):
    ours, peer = found[f"job{mode}"], found[f"pod{mode}"]
    what = f"task `true`{mode and ', deferrable'}"
    row(what, median(ours), peer=median(peer), note=f"ours {span(ours)}, peer {span(peer)}, {version}")
    row(f"{what}: above the Job itself", median(ours) - alone["job"], limit=0.5, peer=median(peer) - alone["pod"])
