"""Measures the promised speed next to the peers: `make bench ARGS="imports logs"`.

Each measure runs in a separate process with its own byte code and home, and prints rows as JSON. They are written to
`docs/benchmarks.md`, which keeps the rows of measures that were not run.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURES = ROOT / "bench" / "measures"
PAGE = ROOT / "docs" / "benchmarks.md"
SECTIONS = {
    "Imports": ["imports"],
    "Pipelines": ["pipelines", "pipeline_steps"],
    "Functions": ["functions"],
    "Command line": ["commands"],
    "Local processes": ["dryrun", "latency", "idle", "logs", "task"],
    "Docker": ["docker_true", "docker_lines", "docker_requests", "docker_workspace"],
    "Kubernetes": ["kubernetes_true", "kubernetes_lines", "kubernetes_requests"],
    "Slurm": ["slurm_true", "slurm_end", "slurm_lines", "slurm_idle"],
    "AWS Batch": ["aws_batch"],
    "Triggerer": ["triggers", "trigger_floods", "trigger_long_lines"],
}
BLOCK = re.compile(r"^`(\w+)`, .*?(?=^`|^## |\Z)", re.MULTILINE | re.DOTALL)
NAMES = [name for names in SECTIONS.values() for name in names]
PACKAGES = [
    "apache-airflow",
    "apache-airflow-task-sdk",
    "apache-airflow-providers-docker",
    "apache-airflow-providers-amazon",
    "boto3",
    "docker",
    "kubernetes",
    "moto",
    "structlog",
]
HEAD = """# Benchmarks

`make bench` writes this page: it measures on your machine and compares with the limits. To run some measures:
`make bench ARGS="imports docker_true"`. All measures take about 40 minutes. Docker, Kubernetes and Slurm are skipped if
no engine or cluster answers; start them with `make engine ARGS=start`, `make cluster ARGS=start`,
`python -m tests.engines.slurm start`.

Each measure records its date and machine. A ratio is the median over pairs in which ours and the peer ran in turn on
the same engine, so that the load of the machine affects both. Other figures are medians of several rounds, or of one
run. A limit is a guarantee of this package.
"""
LIMIT_S = 3600


def measure(name: str) -> dict[str, Any]:
    """Run one measure and return its date, machine and rows."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="launch-bench-") as home:
        env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env |= {
            "AIRFLOW_HOME": f"{home}/airflow",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": f"{home}/airflow/dags",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow/airflow.db",
            "LAUNCH_HOME": f"{home}/launch",
            "BENCH_HOME": home,
            "PYTHONPATH": str(ROOT),  # the engines of the tests
        }
        Path(home, "airflow", "dags").mkdir(parents=True)
        command = [sys.executable, str(MEASURES / f"{name}.py")]
        try:
            done = subprocess.run(
                command, env=env, cwd=home, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
            )
            output, end = done.stdout, f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            output, end = "", f"not ended after {LIMIT_S} s"
    rows = [json.loads(line[4:]) for line in output.splitlines() if line.startswith("ROW ")]
    if end or not rows:
        rows.append({"what": f"{name}: FAILED, {end or 'no row'}", "ours": None})
    return {"name": name, "day": time.strftime("%Y-%m-%d"), "load": load, "host": host(), "rows": rows}


def host() -> str:
    """Return the machine and the versions, in one line."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(": ")[2]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES if installed(name))
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{cpu}, {system}, {engine()}{versions}"


def installed(name: str) -> bool:
    return any(found.metadata["Name"] == name for found in importlib.metadata.distributions(name=name))


def engine() -> str:
    """Return the version of the running Docker engine, if there is one."""
    sys.path.insert(0, str(ROOT))
    try:
        import docker
        from tests.engines.docker.engine import find

        found, _ = find()
        return f"Docker engine {docker.DockerClient(found).version()['Version']}, " if found else ""
    except ImportError:
        return ""


def shown(value: object, unit: object) -> str:
    """Return a number with its unit, or an empty cell."""
    return "" if value is None else f"{value:.4g} {unit or ''}".strip()


def is_over(row: dict[str, Any]) -> bool:
    ours, limit = row.get("ours"), row.get("limit")
    if ours is None:
        return not row.get("skipped")
    return limit is not None and ours > limit


def cells(row: dict[str, Any]) -> list[str]:
    note = ("**over the limit**; " if is_over(row) else "") + str(row.get("note", ""))
    return [str(row["what"]), *(shown(row.get(key), row.get("unit")) for key in ("ours", "limit", "peer")), note]


def block(found: dict[str, Any]) -> str:
    """Return the part of the page about one measure."""
    table = [["what", "measured", "limit", "peer", "note"], ["---"] * 5, *map(cells, found["rows"])]
    text = f"`{found['name']}`, {found['day']}, load of the machine at its start {found['load']:.1f}: "
    text += f"{found['host']}.\n\n"
    return text + "".join(f"| {' | '.join(line)} |\n" for line in table)


def page(measured: list[dict[str, Any]], before: str) -> str:
    """Return the page with the new rows; other measures keep their previous rows."""
    blocks = {found[1]: found[0].strip() + "\n" for found in BLOCK.finditer(before)}
    blocks |= {found["name"]: block(found) for found in measured}
    text = HEAD
    for section, names in SECTIONS.items():
        text += f"\n## {section}\n" + "".join(f"\n{blocks[name]}" for name in names if name in blocks)
    return text


def main() -> int:
    """Print a table and write the page; exit code 1 if a limit was exceeded."""
    measured = []
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    for name in sys.argv[1:] or NAMES:
        measured.append(measure(name))
        # Write after each measure, because the next one may be interrupted.
        PAGE.write_text(page(measured, before), encoding="utf-8")
    rows = [row for found in measured for row in found["rows"]]
    width = max(len(str(row["what"])) for row in rows)
    for line in (["what", "measured", "limit", "peer", "note"], *map(cells, rows)):
        print(f"{line[0]:{width}}  {line[1]:>12}  {line[2]:>12}  {line[3]:>12}  {line[4]}")
    return 1 if any(map(is_over, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
