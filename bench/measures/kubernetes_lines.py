"""A hundred thousand lines from a pod into the task log; peer: KubernetesPodOperator."""

from __future__ import annotations

import sys

import kubernetes_cluster
import peers
from lines import FEW, SCRIPT, wrong
from rows import row
from task_pairs import Cost, median, ratio, span, task

PAIRS = 3

found: dict[str, list[Cost]] = {"job": [], "pod": []}
faults = dict.fromkeys(found, 0)
with kubernetes_cluster.use("lines from Kubernetes"):
    pythons = {"job": sys.executable, "pod": peers.kubernetes_python()}
    for number in range(PAIRS):
        for side in ("job", "pod") if number % 2 else ("pod", "job"):
            costs, log = task(side, 1, SCRIPT.format(lines=FEW), pythons[side])
            found[side] += costs
            faults[side] += wrong(log, FEW)

ours, peer = found["job"], found["pod"]
row("100 000 lines", median(ours), peer=median(peer), note=f"ours {span(ours)}, peer {span(peer)}")
worth, pairs = ratio(ours, peer)
row("100 000 lines: ours / peer", worth, "x", limit=0.5, note=pairs)
worth, pairs = ratio(ours, peer, "cpu")
row("100 000 lines: CPU", median(ours, "cpu"), peer=median(peer, "cpu"), note=f"ours / peer {worth:.2f}, {pairs}")
row("lines lost, repeated or out of order", faults["job"], "", limit=0, peer=faults["pod"], note="in all these runs")
