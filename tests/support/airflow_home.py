"""A home of Airflow with a database, in which another process runs the DAGs of a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def migrated(home: Path, connections: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the environment of processes of an Airflow with an empty database.

    Args:
        home: an empty folder.
        connections: by the name in the variable, as Airflow writes them in JSON.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "LAUNCH_HOME": str(home / "launch"),
        "HOME": str(home),
        "TMPDIR": str(home),
    }
    for name, connection in connections.items():
        env[f"AIRFLOW_CONN_{name}"] = json.dumps(connection)
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], env=env, check=True, capture_output=True, timeout=600
    )
    return env


def run_dags(folder: Path, env: dict[str, str], log: Path, limit_s: float) -> dict[str, Any]:
    """Run the DAGs below a folder by `tests.support.dag_runs`, and return its report.

    Args:
        folder: of the DAGs.
        env: of `migrated`.
        log: a new file, which gets the lines of the tasks.
        limit_s: for all of them.
    """
    report = log.with_name("report.json")
    with log.open("w", encoding="utf-8") as lines:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.support.dag_runs", str(folder), str(report)],
            cwd=ROOT, env=env | {"AIRFLOW__CORE__DAGS_FOLDER": str(folder)},
            stdout=lines, stderr=subprocess.STDOUT, timeout=limit_s, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, log.read_text(encoding="utf-8")[-3000:]
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    errors = {file: each["error"] for file, each in found.items() if "error" in each}
    assert not errors, "\n".join(f"{file}: {error}" for file, error in errors.items())
    return found
