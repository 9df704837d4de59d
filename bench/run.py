"""Measure what the package promises about speed, side by side with its peers: `make bench ARGS="imports logs"`.

Each measure runs in a process of its own, with byte code and a home of its own, and prints rows as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MEASURES = Path(__file__).resolve().parent / "measures"
NAMES = ["imports", "dryrun", "latency", "idle", "logs", "task"]


def measure(name: str) -> list[dict[str, object]]:
    """Run one measure and return its rows."""
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
        }
        Path(home, "airflow", "dags").mkdir(parents=True)
        command = [sys.executable, str(MEASURES / f"{name}.py")]
        done = subprocess.run(command, env=env, cwd=home, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if done.returncode or not rows:
        rows.append({"what": f"{name}: FAILED, exit code {done.returncode}", "ours": None})
    return rows


def shown(value: object, unit: object) -> str:
    """A number with its unit, or an empty cell."""
    return "" if value is None else f"{value:.4g} {unit or ''}".strip()


def main() -> int:
    """Print one table; the exit code says whether every limit was kept."""
    rows = [row for name in (sys.argv[1:] or NAMES) for row in measure(name)]
    width = max(len(str(row["what"])) for row in rows)
    print(f"{'what':{width}}  {'measured':>12}  {'limit':>12}  {'peer':>12}  note")
    broken = 0
    for row in rows:
        ours, limit = row.get("ours"), row.get("limit")
        over = ours is None or (limit is not None and ours > limit)
        broken += over
        cells = [shown(row.get(key), row.get("unit")) for key in ("ours", "limit", "peer")]
        note = ("OVER THE LIMIT " if over else "") + str(row.get("note", ""))
        print(f"{row['what']:{width}}  {cells[0]:>12}  {cells[1]:>12}  {cells[2]:>12}  {note}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
