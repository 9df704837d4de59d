"""A hundred thousand lines of a job over ssh; peer: `ssh tail -f` of the file of another job at the same time."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import slurm_cluster
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role
from lines import FEW, SCRIPT
from rows import row
from task_pairs import Cost, median, ratio, span

PAIRS = 7


def launch(runner: Runner, go: Path) -> str:
    """Launch a job that writes the lines as soon as the file exists."""
    script = f"echo ready; until [ -e {go} ]; do sleep 0.01; done; {SCRIPT.format(lines=FEW)}".replace("$", "$$")
    app = AppDef("lines", [Role("r", "", entrypoint="sh", args=["-c", script], resource=Resource(1, 0, 64))])
    return runner.schedule(runner.dryrun(app, "slurm", {}))


def ours(runner: Runner, go: Path) -> tuple[Cost, int]:
    lines = iter(runner.log_lines(launch(runner, go), "r", should_tail=True))
    assert next(lines) == "ready\n"
    start, cpu = time.perf_counter(), time.process_time()
    go.touch()
    wrong = sum(not line.startswith(f"step {number}: ") for number, line in zip(range(FEW), lines, strict=False))
    return {"wall": time.perf_counter() - start, "cpu": time.process_time() - cpu}, wrong


def tail(runner: Runner, go: Path) -> tuple[Cost, int]:
    app_id = launch(runner, go).rpartition("/")[2]
    file = Path(slurm_cluster.ROOT, "apps", app_id, "run/0/0-r/0/0/stdout")
    while not (file.exists() and file.read_text()):
        time.sleep(0.05)
    sshd = slurm_cluster.CLUSTER.sshd
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    way = ["ssh", "-p", str(sshd.port), "-i", str(sshd.key), *options, "root@127.0.0.1"]
    with subprocess.Popen([*way, "tail", "-n", "+1", "-f", str(file)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        start, cpu = time.perf_counter(), os.times()
        go.touch()
        wrong = sum(not process.stdout.readline().startswith(f"step {number}: ") for number in range(FEW))
        wall = time.perf_counter() - start
        process.terminate()
    after = os.times()
    used = after.user + after.system + after.children_user + after.children_system
    return {"wall": wall, "cpu": used - cpu.user - cpu.system - cpu.children_user - cpu.children_system}, wrong


with ExitStack() as stack:
    stack.enter_context(slurm_cluster.use("lines over ssh"))
    params = {"slurm": slurm_cluster.params(over_ssh=True)}
    runner = stack.enter_context(Runner("bench", scheduler_params=params))
    found: dict[str, list[Cost]] = {"ours": [], "tail": []}
    faults = dict.fromkeys(found, 0)
    for number in range(PAIRS + 1):
        for side in ("ours", "tail") if number % 2 else ("tail", "ours"):
            go = Path(os.environ["BENCH_HOME"], f"go-{side}-{number}")
            cost, wrong = (ours if side == "ours" else tail)(runner, go)
            faults[side] += wrong
            if number:
                found[side].append(cost)
mine, peer = found["ours"], found["tail"]
note = f"from the first byte written; ours {span(mine)}, peer {span(peer)}"
row("100 000 lines over ssh", median(mine), peer=median(peer), note=note)
worth, pairs = ratio(mine, peer)
row("100 000 lines over ssh: ours / `ssh tail -f`", worth, "x", note=pairs)
row("100 000 lines over ssh: CPU", median(mine, "cpu"), peer=median(peer, "cpu"), note="without that of sshd")
row("lines lost, repeated or out of order", faults["ours"], "", limit=0, peer=faults["tail"], note="in all these runs")
