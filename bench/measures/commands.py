"""Cost of the command `launch`: user CPU of new processes; peer: `airflow --help`."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

from rows import row

ROUNDS = 7
LAUNCH = (sys.executable, "-m", "airflow_provider_launch.cli")
HELP, AIRFLOW = (*LAUNCH, "--help"), (sys.executable, "-m", "airflow", "--help")


def run(*command: str) -> tuple[str, float]:
    """Return stdout of a command, and its user seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return done.stdout, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


handle = run(*LAUNCH, "run", "-s", "local", "--wait", "utils.sh", "--", "true")[0].strip()
status, listing = (*LAUNCH, "status", handle), (*LAUNCH, "list", "-s", "local")
dry = (*LAUNCH, "run", "-s", "local", "--dryrun", "utils.echo")
times: dict[tuple[str, ...], list[float]] = {command: [] for command in (HELP, AIRFLOW, status, listing, dry)}
# The first round writes byte code and is dropped.
for _ in range(ROUNDS + 1):
    for command, found in times.items():
        found.append(run(*command)[1])
median = {command: statistics.median(found[1:]) for command, found in times.items()}
row("launch --help", median[HELP], limit=0.1, peer=median[AIRFLOW], note="peer: airflow --help")
row("launch status of a local app", median[status], limit=0.4)
row("launch list of local apps", median[listing])
row("launch run --dryrun of a component", median[dry])
