"""Runs the tests on the versions of `versions.yaml`, each in an environment of its own: `make versions`.

Arguments: versions of Airflow, such as 3.1; none: all that are supported and older than the newest. `--few` runs the
tests that may differ, `--python 3.10` another Python than the oldest one that is found.
"""

from __future__ import annotations

import argparse
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


def run(row: dict[str, Any], python: str, tests: list[str]) -> int:
    """Run the tests on one version, and return the exit status of the first command that fails, or 0."""
    program = environment(row, python)
    print(f"=== Airflow {row['patch']}, Python {python}", flush=True)
    env = os.environ | {"AIRFLOW_HOME": str(BUILD / f"home-{row['version']}"), "PYTHONPATH": str(CHECKOUT)}
    # Warnings of older versions about each other are not ours to mend.
    pytest = [str(program), "-m", "pytest", "-q", "-W", "default", "-n", "2", *tests]
    for command in ([str(program), "-W", "ignore", "-c", _IMPORT_ALL], pytest):
        if status := subprocess.run(command, cwd=CHECKOUT, env=env, check=False).returncode:
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
    given = parser.parse_args()
    if unknown := {*given.versions} - {*rows}:
        parser.error(f"there are {', '.join(rows)}, not {', '.join(sorted(unknown))}")
    older = [*rows][1:]
    statuses = [
        run(rows[each], given.python or rows[each]["pythons"][0], found["few" if given.few else "most"])
        for each in given.versions or older
    ]
    return max(statuses, default=0)


if __name__ == "__main__":
    sys.exit(main())
