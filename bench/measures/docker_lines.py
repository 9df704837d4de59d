"""A hundred thousand lines, and a million, from a container into the task log; peer: the Docker provider's operator."""

from __future__ import annotations

import docker_engine
from lines import FEW, MANY, SCRIPT, wrong
from rows import row
from task_pairs import Cost, docker_run, median, ratio, span, task

PAIRS = 5

docker_engine.use("lines from Docker")
few: dict[str, list[Cost]] = {"ours": [], "peer": []}
many: dict[str, Cost] = {}
faults = dict.fromkeys(few, 0)
cli: list[Cost] = []
for number in range(PAIRS):
    for side in ("ours", "peer") if number % 2 else ("peer", "ours"):
        costs, log = task(side, 1, SCRIPT.format(lines=FEW))
        few[side] += costs
        faults[side] += wrong(log, FEW)
    if cost := docker_run(SCRIPT.format(lines=FEW)):
        cli.append(cost)
for side in few:
    (many[side],), log = task(side, 1, SCRIPT.format(lines=MANY))
    faults[side] += wrong(log, MANY)

ours, peer = few["ours"], few["peer"]
note = f"ours {span(ours)}, peer {span(peer)}, `docker run` into nowhere {span(cli)}"
row("100 000 lines", median(ours), peer=median(peer), note=note)
worth, pairs = ratio(ours, peer)
row("100 000 lines: ours / peer", worth, "x", limit=1, note=pairs)
worth, pairs = ratio(ours, peer, "cpu")
row("100 000 lines: CPU", median(ours, "cpu"), peer=median(peer, "cpu"), note=f"ours / peer {worth:.2f}, {pairs}")
row("1 000 000 lines", many["ours"]["wall"], peer=many["peer"]["wall"], note="one run each")
row("1 000 000 lines: CPU", many["ours"]["cpu"], peer=many["peer"]["cpu"])
row("1 000 000 lines: peak memory of the task", many["ours"]["peak"], "MB", peer=many["peer"]["peak"])
grown = {side: many[side]["peak"] - median(few[side], "peak") for side in few}
row("peak memory: growth from 100 000 lines", grown["ours"], "MB", limit=10, peer=grown["peer"])
row("lines lost, repeated or out of order", faults["ours"], "", limit=0, peer=faults["peer"], note="in all these runs")
