"""Runs the tests on the versions of `versions.yaml`, each in an environment of its own: `make versions`.

Arguments: versions of Airflow, such as 3.1; none: all that are supported and older than the newest. `--few` runs only
the tests that may differ, `--python 3.13` uses another Python than the oldest one, `--pythons` runs the newest Airflow
on each Python. Each version also imports every module, and runs the demo.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
BUILD = CHECKOUT / ".build" / "versions"
_IMPORT_ALL = """
import importlib, pkgutil
import airflow_provider_launch as package
names = [found.name for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
# Examples need a DAG folder, and programs start when they are imported.
left_out = (".example_dags", ".apps", ".__main__")
names = [name for name in names if not any(part in name for part in left_out)]
for name in names:
    importlib.import_module(name)
print(f"{len(names)} modules can be imported")
"""


def matrix() -> dict[str, Any]:
    """Return the content of `versions.yaml`."""
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "tools" / "versions.yaml").read_text(encoding="utf-8"))
    return found


def environment(row: dict[str, Any], python: str) -> Path:
    """Make the environment of one version of Airflow, unless it is there, and return its Python."""
    home = BUILD / f"{row['version']}-{python}"
    done = home / f"ready-{row['patch']}"
    program = home / "bin" / "python"
    if done.exists():
        return program
    uv = shutil.which("uv") or str(CHECKOUT / ".build" / "venv" / "bin" / "uv")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", _interpreter(python), str(home)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(program)]
    before = ["--exclude-newer", f"{row['before']}T00:00:00Z"] if "before" in row else []
    needs = [f"apache-airflow=={row['patch']}", "--editable", f"{CHECKOUT}[docker]", "--group", "versions"]
    subprocess.run([*install, *needs, *before], cwd=CHECKOUT, check=True)
    done.touch()
    return program


def _interpreter(python: str) -> str:
    # Those of pyenv have shims that answer for versions that are not selected.
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next((str(found / "bin" / "python") for found in sorted(own.glob(f"{python}.*"))), python)


def commands(program: Path, tests: list[str]) -> list[list[str]]:
    """Return what is run on one version: imports, the demo, and the tests, if there are any."""
    python = str(program)
    # Warnings of older versions about each other are not ours to mend.
    pytest = [[python, "-m", "pytest", "-q", "-W", "default", "-n", "2", *tests]] if tests else []
    return [
        [python, "-W", "ignore", "-c", _IMPORT_ALL],
        [python, "-m", "airflow", "db", "migrate"],
        [python, "-m", "airflow", "dags", "test", "launch_local_demo"],
        *pytest,
    ]


def run(row: dict[str, Any], python: str, tests: list[str]) -> int:
    """Run the tests on one version, and return the exit status of the first command that fails, or 0."""
    program = environment(row, python)
    print(f"=== Airflow {row['patch']}, Python {python}", flush=True)
    home = BUILD / f"home-{row['version']}-{python}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    bundle = {"path": str(CHECKOUT / "example_dags")}
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(
            [{"name": "examples", "classpath": local, "kwargs": bundle}]
        ),
        "AIRFLOW__CORE__DAGS_FOLDER": bundle["path"],
        "LAUNCH_HOME": str(home / "launch"),
        "PYTHONPATH": str(CHECKOUT),
    }
    for command in commands(program, tests):
        if status := subprocess.run(command, cwd=CHECKOUT, env=env, check=False).returncode:
            print(f"failed with status {status}: {' '.join(command[1:])}", file=sys.stderr)
            return status
    return 0


def main() -> int:
    """Run what the command line asks for."""
    found = matrix()
    rows = {row["version"]: row for row in found["airflow"] if "patch" in row}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help=f"of Airflow: {', '.join(rows)}")
    parser.add_argument("--few", action="store_true", help="only the tests that may differ between versions")
    parser.add_argument("--python", help="minor version of Python")
    parser.add_argument("--pythons", action="store_true", help="imports and demo of the newest Airflow on each Python")
    given = parser.parse_args()
    if unknown := {*given.versions} - {*rows}:
        parser.error(f"there are {', '.join(rows)}, not {', '.join(sorted(unknown))}")
    if given.pythons:
        newest = next(iter(rows.values()))
        return max(run(newest, python, []) for python in newest["pythons"])
    older = [*rows][1:]
    statuses = [
        run(rows[each], given.python or rows[each]["pythons"][0], found["few" if given.few else "most"])
        for each in given.versions or older
    ]
    return max(statuses, default=0)


if __name__ == "__main__":
    sys.exit(main())
