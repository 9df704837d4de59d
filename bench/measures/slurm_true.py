"""The task `true` on Slurm: ours over ssh, `srun true`, `sbatch --wait`; in turn."""

from __future__ import annotations

import subprocess
import time

import slurm_cluster
from rows import row
from task_pairs import Cost, median, ratio, span, task

PAIRS = 7
WARM = 2


def command(*words: str) -> Cost:
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=slurm_cluster.CLUSTER.env)
    return {"wall": time.perf_counter() - start}


with slurm_cluster.use("task `true` on Slurm"):
    found: dict[str, list[Cost]] = {"new": [], "used": [], "srun": [], "sbatch": []}
    for number in range(PAIRS + 1):
        costs, log = task("slurm", 1 + WARM, "true")
        log.unlink()
        pair = {
            "new": costs[0],
            "used": {"wall": median(costs[1:]), "cpu": median(costs[1:], "cpu")},
            "srun": command("srun", "--ntasks=1", "true"),
            "sbatch": command("sbatch", "--wait", "--ntasks=1", "--output=/dev/null", "--wrap=srun true"),
        }
        if number:  # the first one writes byte code
            for name, cost in pair.items():
                found[name].append(cost)
for name, what in (("new", "task `true`, new process"), ("used", "task `true`, process in use")):
    ours = found[name]
    note = f"ours {span(ours)}; peer: `sbatch --wait` {span(found['sbatch'])}; `srun true` {span(found['srun'])}"
    row(what, median(ours), peer=median(found["sbatch"]), note=note)
    for peer, words in (("sbatch", "sbatch --wait"), ("srun", "srun true")):
        worth, pairs = ratio(ours, found[peer])
        row(f"{what}: ours / `{words}`", worth, "x", note=pairs)
row("task `true`, new process: CPU", median(found["new"], "cpu"))
