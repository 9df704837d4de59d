"""Requests to an API server while apps are followed, in both modes; peer: KubernetesPodOperator in both modes."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import kubernetes_cluster
import peers
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from asked import SECONDS, Counter, Seen, show
from rows import row, skip
from tests.engines.kubernetes.proxy import KubernetesProxy
from watched import SILENT, TALKS

TALKING = {1: None, 20: 120.0, 100: 400.0}
SILENT_REPLICAS, WAITING = 40, {40: 40.0, 1000: 120.0}
"""The waiting apps, with the seconds until each was polled alone once."""
PEERS = 3
STATES = r"/(jobs|pods|services|events)$"
_SETTLE_S = 15.0


def app(script: str, replicas: int = 1, cpu: int = -1) -> AppDef:
    resource = Resource(cpu=cpu, gpu=-1, memMB=-1)
    args = ["-c", script]
    role = Role("r", kubernetes_cluster.IMAGE, entrypoint="sh", args=args, num_replicas=replicas, resource=resource)
    return AppDef("asked", [role])


with ExitStack() as stack:
    stack.enter_context(kubernetes_cluster.use("requests on Kubernetes"))
    known = {"namespace": kubernetes_cluster.NAMESPACE}
    proxy = stack.enter_context(KubernetesProxy(kubernetes_cluster.KUBECONFIG, kubernetes_cluster.NAMESPACE))
    direct = {**known, "kubeconfig_path": kubernetes_cluster.KUBECONFIG}
    through = {**known, "kubeconfig_path": str(proxy.kubeconfig)}
    runner = stack.enter_context(Runner("bench", scheduler_params={"kubernetes": direct}))
    scheduler = runner.scheduler("kubernetes")
    counter = Counter(proxy, STATES)
    ids: list[str] = []

    def launch(number: int, made: AppDef) -> str:
        app_id = f"bench-asked-{os.getpid()}-{number}"
        cfg = {"pull": "never", "security": "none"}
        return runner.schedule(runner.dryrun(made, "kubernetes", cfg, app_id=app_id)).rpartition("/")[2]

    def launch_all(made: AppDef, count: int, state: AppState) -> list[str]:
        first = len(ids)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda number: launch(number, made), range(first, first + count)))
        ids.extend(found)
        deadline = time.monotonic() + 600
        while any(one is None or one.state is not state for one in scheduler.describe_many(found).values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all of {count} apps are {state}")
            time.sleep(1)
        return found

    def remove() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(scheduler.delete, ids))
        ids.clear()

    def watch(mode: str, apps: list[str], settle_s: float = _SETTLE_S, seconds: float = SECONDS) -> Seen:
        return counter.watch(mode, "kubernetes", through, apps, settle_s, seconds)

    stack.callback(remove)
    theirs: dict[str, float] = {}
    try:
        python = peers.kubernetes_python()
        for side in ("pod", "pod-deferrable"):
            seen = counter.peer(python, side, TALKS, PEERS, BENCH_KUBECONFIG=str(proxy.kubeconfig))
            theirs[side] = seen.requests / PEERS
    except (OSError, RuntimeError) as error:
        skip("peer: KubernetesPodOperator", str(error))

    talking = launch_all(app(TALKS), max(TALKING), AppState.RUNNING)
    for count, goal in TALKING.items():
        for mode, side, by in (("triggerer", "pod-deferrable", "one triggerer"), ("worker", "pod", f"{count} workers")):
            peer = count * theirs[side] if side in theirs else None
            seen = watch(mode, talking[:count])
            show(f"{count} talking", seen, goal=goal, peer=peer, replicas=count if mode == "triggerer" else 0, by=by)
    remove()

    silent = launch_all(app(SILENT, SILENT_REPLICAS), 1, AppState.RUNNING)
    for mode in ("triggerer", "worker"):
        seen = watch(mode, silent)
        show(f"{SILENT_REPLICAS} silent replicas", seen, goal=80, replicas=SILENT_REPLICAS, by=f"one {mode}")
    remove()

    for count, settle_s in WAITING.items():
        waiting = launch_all(app("true", cpu=1000), count, AppState.PENDING)
        seen = watch("triggerer", waiting, settle_s, 60)
        note = f"one triggerer; {seen.states:.0f} for states"
        row(f"{count} waiting: requests", seen.requests, "/min", limit=40, note=note)
        remove()
