"""Costs of following Jobs: requests and CPU, for 1, 100 and 1000 of them; and a large dry run.

No controller manages the Jobs, and their status is set to running, so that a thousand of them need no node.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import kubernetes_cluster
import psutil
from airflow_provider_launch.follow.poller import Poller
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Role
from kubernetes.client import BatchV1Api  # noqa: TID253 - a measure of it
from rows import row
from tests.engines.kubernetes.proxy import KubernetesProxy

COUNTS = (1, 100, 1000)
INTERVAL_S, SECONDS, SETTLE_S = 5.0, 30, 8
PER_MINUTE = 24


def hear(_answer: object) -> None:
    """Do nothing."""


def cpu() -> float:
    used = psutil.Process().cpu_times()
    return float(used.user + used.system)


def server_cpu() -> float:
    """Return the CPU seconds of all API servers of this machine."""
    found = [one.cpu_times() for one in psutil.process_iter(["name"]) if one.info["name"] == "kube-apiserver"]
    return sum(one.user + one.system for one in found)


with ExitStack() as stack:
    client = stack.enter_context(kubernetes_cluster.use("following Jobs on Kubernetes"))
    proxy = stack.enter_context(KubernetesProxy(kubernetes_cluster.KUBECONFIG, kubernetes_cluster.NAMESPACE))
    batch = BatchV1Api(client)
    known = {"namespace": kubernetes_cluster.NAMESPACE}
    paths = {"direct": kubernetes_cluster.KUBECONFIG, "proxied": str(proxy.kubeconfig)}
    runners = {
        name: Runner("bench", scheduler_params={"kubernetes": {**known, "kubeconfig_path": path}})
        for name, path in paths.items()
    }
    runner = runners["direct"]
    role = Role("r", kubernetes_cluster.IMAGE, entrypoint="sleep", args=["3600"])
    times = []
    big = AppDef("big", [Role("worker", "image", entrypoint="true", num_replicas=1000)])
    for _ in range(15):
        start = time.perf_counter()
        runner.dryrun(big, "kubernetes", {})
        times.append(time.perf_counter() - start)
    row("dry run of 1000 replicas", statistics.median(times), limit=0.05, note=f"worst {max(times):.3f} s")

    ids = [f"bench-idle-{os.getpid()}-{number}" for number in range(max(COUNTS))]

    def submit(app_id: str) -> None:
        app = AppDef("idle", [role])
        runner.schedule(runner.dryrun(app, "kubernetes", {"pull": "never"}, app_id=app_id))

    cluster = runner.scheduler("kubernetes").cluster
    create = cluster.create

    def unmanaged(kind: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        changed = {**body, "spec": {**body["spec"], "managedBy": "launch.io/bench"}} if kind == "jobs" else body
        return create(kind, changed, dry_run=dry_run)

    cluster.create = unmanaged
    start = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(submit, ids))
    row("submit one app", (time.perf_counter() - start) / len(ids), note=f"mean of {len(ids)}, four at once")
    running = {"status": {"active": 1, "ready": 1, "startTime": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"}}
    for app_id in ids:
        batch.patch_namespaced_job_status(f"{app_id}--r", kubernetes_cluster.NAMESPACE, running)
    for count in COUNTS:
        used = {}
        for name, each in runners.items():
            poller = Poller(each.scheduler("kubernetes"), INTERVAL_S)
            for app_id in ids[:count]:
                poller.subscribe(app_id, hear, INTERVAL_S)
            time.sleep(SETTLE_S)
            before = (proxy.count(), cpu(), server_cpu())
            time.sleep(SECONDS)
            used[name] = [
                after - first for after, first in zip((proxy.count(), cpu(), server_cpu()), before, strict=True)
            ]
            for app_id in ids[:count]:
                poller.unsubscribe(app_id, hear)
            poller.join(10)
        what = f"states of {count} Jobs"
        asked = used["proxied"][0] * 60 / SECONDS
        row(
            f"{what}: requests",
            asked,
            "/min",
            limit=PER_MINUTE,
            note=f"one poller, each {INTERVAL_S:g} s",
        )
        own, server = (100 * used["direct"][kind] / SECONDS for kind in (1, 2))
        # Without the proxy, which is one of our threads.
        row(f"{what}: CPU", own, "%", note=f"of a core; the API server: {server:.1f} %")
    for each in runners.values():
        each.close()
