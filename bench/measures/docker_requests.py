"""Requests to a Docker engine while apps are followed, in both modes; peer: DockerOperator."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import docker_engine
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Role
from asked import SECONDS, Counter, Seen, show
from rows import row
from tests.faults import FaultProxy
from watched import FLOODS, SILENT, TALKS

TALKING = {1: None, 20: 120.0, 100: 400.0}
SILENT_REPLICAS, WAITING, MANY = 40, 40, 200
FLOODING = 20
PEERS = 3
CFG = {"network": "none", "init": False, "grace_s": 0}
STATES = r"/containers/json$"
_SETTLE_S, _WAITING_S = 15.0, 40.0

docker_engine.use("requests on Docker")


def app(script: str, replicas: int = 1) -> AppDef:
    return AppDef(
        "asked", [Role("r", docker_engine.IMAGE, entrypoint="sh", args=["-c", script], num_replicas=replicas)]
    )


with ExitStack() as stack:
    proxy = stack.enter_context(FaultProxy(docker_engine.HOST))
    runner = stack.enter_context(Runner("bench", scheduler_params={"docker": {"host": docker_engine.HOST}}))
    counter, through, direct = Counter(proxy, STATES), {"host": proxy.url}, {"host": docker_engine.HOST}
    ids: list[str] = []

    def launch(script: str, replicas: int = 1) -> str:
        ids.append(f"bench-asked-{os.getpid()}-{len(ids)}")
        return runner.schedule(runner.dryrun(app(script, replicas), "docker", CFG, app_id=ids[-1])).rpartition("/")[2]

    def create(number: int) -> str:
        """Create an app like a launch that is interrupted before it starts the containers."""
        from airflow_provider_launch.schedulers.docker.creation import first_attempts

        scheduler, app_id = runner.scheduler("docker"), f"bench-asked-{os.getpid()}-waiting-{number}"
        ids.append(app_id)
        request = scheduler._claim(runner.dryrun(app("true"), "docker", CFG, app_id=app_id).request)  # noqa: SLF001 - a step of it
        scheduler._creation.create_all(request, first_attempts(request), set())  # noqa: SLF001 - the next
        return app_id

    def remove() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda one: docker_engine.remove(f"launch.io/app-id={one}"), ids))
        ids.clear()

    def watch(mode: str, apps: list[str], settle_s: float = _SETTLE_S, seconds: float = SECONDS) -> Seen:
        return counter.watch(mode, "docker", through, apps, settle_s, seconds)

    stack.callback(remove)
    stack.callback(docker_engine.remove, docker_engine.LABEL)
    peer = counter.peer(sys.executable, "peer", TALKS, PEERS, DOCKER_HOST=proxy.url)
    docker_engine.remove(docker_engine.LABEL)
    per_task = peer.requests / PEERS

    talking = [launch(TALKS) for _ in range(max(TALKING))]
    for count, goal in TALKING.items():
        what = f"{count} talking"
        seen = watch("triggerer", talking[:count])
        show(what, seen, goal=goal, peer=count * per_task, replicas=count, by="one triggerer")
        seen = watch("worker", talking[:count])
        show(what, seen, goal=goal, peer=count * per_task, by=f"{count} workers")
    remove()

    silent = launch(SILENT, SILENT_REPLICAS)
    for mode in ("triggerer", "worker"):
        seen = watch(mode, [silent])
        show(f"{SILENT_REPLICAS} silent replicas", seen, goal=80, replicas=SILENT_REPLICAS, by=f"one {mode}")
    remove()

    waiting = [create(number) for number in range(WAITING)]
    seen = watch("triggerer", waiting, _WAITING_S)
    show(f"{WAITING} waiting", seen, goal=0, by="one triggerer")
    remove()

    grown = [
        counter.watch("triggerer", "docker", direct, [launch(SILENT, count)], _SETTLE_S, 10).figures["growth"]
        for count in (1, MANY)
    ]
    note = f"one triggerer, silent; growth from 1 to {MANY}"
    row(f"memory of {MANY} streams", (grown[1] - grown[0]) / 1e6, "MB", limit=20, note=note)
    remove()

    floods = [launch(FLOODS) for _ in range(FLOODING)]
    figures = counter.watch("worker", "docker", direct, floods, 5, 15).figures
    rate, used = figures["lines"] / 15, 100 * figures["cpu"]
    row("4000 lines/s: CPU", used * 4000 / rate, "%", limit=40, note=f"of a core; {rate:.0f} lines/s took {used:.1f} %")
