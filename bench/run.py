"""Measure what the package promises about speed, side by side with its peers: `make bench ARGS="imports logs"`.

Each measure runs in a process of its own, with byte code and a home of its own, and prints rows as JSON. They go into
`docs/benchmarks.md`, which keeps what it says of measures that were not run.
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
    "Pipelines": ["pipelines"],
    "Local processes": ["dryrun", "latency", "idle", "logs", "task"],
    "Docker": ["docker_true", "docker_lines", "docker_idle", "docker_requests", "docker_workspace"],
    "Kubernetes": ["kubernetes_true", "kubernetes_lines", "kubernetes_idle", "kubernetes_requests"],
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

Written by `make bench`, which measures on your machine and lists which limits it keeps. Some measures alone:
`make bench ARGS="imports docker_true"`. It takes about three quarters of an hour; Docker, Kubernetes and Slurm are left
out where no engine or cluster answers: `make engine ARGS=start`, `make cluster ARGS=start`,
`python -m tests.engines.slurm start`.

Each measure records when and on what machine it ran. Where a row has a ratio, ours and the peer ran in turn on the same
engine, and it is the median over these pairs, because a busy machine is as busy for both. Other figures are medians of
some rounds, or of one run. A limit is what we promise.
"""
LIMIT_S = 3600


def measure(name: str) -> dict[str, Any]:
    """Run one measure and return when, where and what."""
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
            said, end = done.stdout, f"exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            said, end = "", f"no end after {LIMIT_S} s"
    rows = [json.loads(line[4:]) for line in said.splitlines() if line.startswith("ROW ")]
    if end or not rows:
        rows.append({"what": f"{name}: FAILED, {end or 'no row'}", "ours": None})
    return {"name": name, "day": time.strftime("%Y-%m-%d"), "load": load, "host": host(), "rows": rows}


def host() -> str:
    """What the figures depend on, in one line."""
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
    """The version of the Docker engine that answers, if one does."""
    sys.path.insert(0, str(ROOT))
    try:
        import docker
        from tests.engines.docker.engine import find

        found, _ = find()
        return f"Docker engine {docker.DockerClient(found).version()['Version']}, " if found else ""
    except ImportError:
        return ""


def shown(value: object, unit: object) -> str:
    """A number with its unit, or an empty cell."""
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
    """What the page says of one measure."""
    table = [["what", "measured", "limit", "peer", "note"], ["---"] * 5, *map(cells, found["rows"])]
    text = f"`{found['name']}`, {found['day']}, load of the machine at its start {found['load']:.1f}:\n"
    text += f"{found['host']}.\n\n"
    return text + "".join(f"| {' | '.join(line)} |\n" for line in table)


def page(measured: list[dict[str, Any]], before: str) -> str:
    """The page with what was measured now; of other measures it says what it said before."""
    blocks = {found[1]: found[0].strip() + "\n" for found in BLOCK.finditer(before)}
    blocks |= {found["name"]: block(found) for found in measured}
    text = HEAD
    for section, names in SECTIONS.items():
        text += f"\n## {section}\n" + "".join(f"\n{blocks[name]}" for name in names if name in blocks)
    return text


def main() -> int:
    """Print one table and write the page; the exit code says whether every limit was kept."""
    measured = []
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    for name in sys.argv[1:] or NAMES:
        measured.append(measure(name))
        # Each at once: the next one may be interrupted.
        PAGE.write_text(page(measured, before), encoding="utf-8")
    rows = [row for found in measured for row in found["rows"]]
    width = max(len(str(row["what"])) for row in rows)
    for line in (["what", "measured", "limit", "peer", "note"], *map(cells, rows)):
        print(f"{line[0]:{width}}  {line[1]:>12}  {line[2]:>12}  {line[3]:>12}  {line[4]}")
    return 1 if any(map(is_over, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
