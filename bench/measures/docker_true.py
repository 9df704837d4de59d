"""The task `true` in a container: ours, the Docker provider's operator, and `docker run`."""

from __future__ import annotations

import docker_engine
from rows import row
from task_pairs import Cost, docker_run, median, ratio, span, task

PAIRS = 7
WARM = 3

docker_engine.use("task `true` on Docker")
fresh: dict[str, list[Cost]] = {"ours": [], "peer": []}
warm: dict[str, list[Cost]] = {"ours": [], "peer": []}
cli: list[Cost] = []
# The first pair writes byte code and creates lasting objects, and is dropped.
for number in range(PAIRS + 1):
    for side in ("ours", "peer") if number % 2 else ("peer", "ours"):
        costs, log = task(side, 1 + WARM, "true")
        log.unlink()
        if number:
            fresh[side].append(costs[0])
            warm[side].append({kind: median(costs[1:], kind) for kind in ("wall", "cpu")})
    if cost := docker_run("true"):
        cli.append(cost)
for name, found in (("new process", fresh), ("process in use", warm)):
    ours, peer = found["ours"], found["peer"]
    note = f"ours {span(ours)}, peer {span(peer)}, `docker run` {span(cli)}"
    row(f"task `true`, {name}", median(ours), peer=median(peer), note=note)
    worth, pairs = ratio(ours, peer)
    row(f"task `true`, {name}: ours / peer", worth, "x", limit=1, note=pairs)
    row(f"task `true`, {name}: CPU", median(ours, "cpu"), peer=median(peer, "cpu"), note=f"ours {span(ours, 'cpu')}")
