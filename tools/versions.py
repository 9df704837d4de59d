"""Runs the tests on the versions of `versions.yaml`, each in an environment of its own: `make versions`.

Arguments: versions of Airflow, such as 3.1; none: all that are supported and older than the newest. `--few` runs only
the tests that may differ, `--python 3.13` uses another Python than the oldest one. Each version also imports every
module, and runs the demo.

`--pythons` does this for the newest Airflow on each Python, and runs the tests without engines on the oldest and the
newest one.

`--bounds` runs the tests of each extra twice: with the lowest versions that pyproject.toml allows, also of Airflow, on
the oldest Python, and with the newest ones on the newest Python. Names of extras select some.

`--engines` runs the tests of Slurm and Docker on the newer engines of newer Debian releases, and those of Kubernetes on
the oldest version that is promised, as root. Names of releases, or `kubernetes`, select some.

`--tests` names files or folders to run instead of those of `versions.yaml`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import zlib
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


def environment(name: str, python: str, row: dict[str, Any], *needs: str) -> Path:
    """Make an environment, unless it is there, and return its Python.

    Args:
        name: of its folder.
        python: minor version.
        row: the version of Airflow, whose date limits all packages.
        needs: arguments of `uv pip install`.
    """
    home = BUILD / name
    dated = ["--exclude-newer", f"{row['before']}T00:00:00Z"] if "before" in row else []
    # One after the other, because the lowest versions are for the package and not for the programs of the tests.
    steps = [[*needs, *dated], ["--group", "versions", *dated]]
    described = "\n".join([*map(str, steps), (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")])
    done = home / f"ready-{zlib.crc32(described.encode())}"
    program = home / "bin" / "python"
    if done.exists():
        return program
    uv = shutil.which("uv") or str(CHECKOUT / ".build" / "venv" / "bin" / "uv")
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", interpreter(python), str(home)], check=True)
    for arguments in steps:
        install = [uv, "pip", "install", "--quiet", "--python", str(program), *arguments]
        subprocess.run(install, cwd=CHECKOUT, check=True)
    done.touch()
    return program


def interpreter(python: str) -> str:
    """Return the path of this minor version below pyenv, or the version itself, which uv searches elsewhere."""
    # Those of pyenv have shims that answer for versions that are not selected.
    own = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next((str(found / "bin" / "python") for found in sorted(own.glob(f"{python}.*"))), python)


def commands(program: Path, tests: list[str]) -> list[list[str]]:
    """Return what is run on one version: imports, the demo, and the tests, if there are any."""
    python = str(program)
    # Each process would start an Airflow of its own for these.
    live = [path for path in tests if path.startswith("tests/live")]
    others = [path for path in tests if path not in live]
    pytest = [_pytest(program, paths, jobs) for paths, jobs in ((others, 2), (live, 0)) if paths]
    return [
        [python, "-W", "ignore", "-c", _IMPORT_ALL],
        [python, "-m", "airflow", "db", "migrate"],
        [python, "-m", "airflow", "dags", "test", "launch_local_demo"],
        *pytest,
    ]


def _pytest(program: Path, tests: list[str], jobs: int = 2) -> list[str]:
    # Warnings of older versions about each other are not ours to fix.
    return [str(program), "-m", "pytest", "-q", "-W", "default", "-n", str(jobs), *tests]


def run_version(row: dict[str, Any], python: str, tests: list[str], extra: str = "docker") -> int:
    """Run the tests on one version of Airflow; return the exit status of the first command that fails, or 0."""
    name = f"{row['version']}-{python}"
    program = environment(name, python, row, f"apache-airflow=={row['patch']}", "--editable", f"{CHECKOUT}[{extra}]")
    return _run(name, f"Airflow {row['patch']}, Python {python}", commands(program, tests))


def run_bounds(extra: str, tests: list[str], oldest: dict[str, Any], newest: dict[str, Any]) -> int:
    """Run the tests of an extra with its lowest and its newest versions; return an exit status like `run_version`."""
    statuses = []
    for row, python, resolution in (
        (oldest, oldest["pythons"][0], "lowest-direct"),
        (newest, newest["pythons"][-1], "highest"),
    ):
        name = f"{extra}-{resolution}"
        needs = ["--editable", f"{CHECKOUT}[{extra}]", "--resolution", resolution]
        program = environment(name, python, row, *needs)
        statuses.append(_run(name, f"extra {extra}, {resolution}, Python {python}", [_pytest(program, tests)]))
    return max(statuses)


def run_engines(name: str, tests: list[str]) -> int:
    """Run tests on other versions of engines; return the highest exit status.

    Args:
        name: a Debian release, whose engines run in a root directory of it, or "kubernetes" for the oldest version.
        tests: files and folders. Each has a result of its own, because they take up to half an hour.
    """
    env = {variable: value for variable, value in os.environ.items() if variable not in ("DOCKER_HOST", "SLURM_CONF")}
    if name == "kubernetes":
        env |= {"LAUNCH_TEST_KUBERNETES": "oldest", "LAUNCH_TEST_CLUSTER_NAME": "launch-k8s-oldest"}
        make = [sys.executable, "-m", "tests.engines.kubernetes", "build"]
        # With a network and processes of its own, it runs next to the other cluster of the host.
        alone = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        enter = [*alone, "sh", "-ec", 'ip link set lo up; exec "$@"', "sh"]
        required = "kubernetes"
    else:
        releases = [sys.executable, "-m", "tests.engines.releases"]
        make, enter = [*releases, "make", name], [*releases, "enter", name]
        required = "slurm,slurmctld,slurmdbd,docker"
    print(f"=== engines of {name}", flush=True)
    if status := subprocess.run(make, cwd=CHECKOUT, env=env, check=False).returncode:
        return status
    statuses = []
    for path in tests:
        print(f"=== {name}: {path}", flush=True)
        command = [*enter, sys.executable, "-m", "pytest", "-q", "-n", "2", path]
        env |= {"LAUNCH_REQUIRE_ENGINES": required}
        statuses.append(subprocess.run(command, cwd=CHECKOUT, env=env, check=False).returncode)
    return max(statuses)


def _run(name: str, title: str, programs: list[list[str]]) -> int:
    """Run commands with an Airflow of their own; return the exit status of the first one that fails, or 0."""
    print(f"=== {title}", flush=True)
    home = BUILD / f"home-{name}"
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
        "LAUNCH_TEST_BATCH_PYTHON": sys.executable,
    }
    for command in programs:
        if status := subprocess.run(command, cwd=CHECKOUT, env=env, check=False).returncode:
            print(f"failed with status {status}: {' '.join(command[1:])}", file=sys.stderr)
            return status
    return 0


def main() -> int:
    """Run what the command line asks for."""
    found = matrix()
    rows = {row["version"]: row for row in found["airflow"] if "patch" in row}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"versions of Airflow: {', '.join(rows)}; extras with --bounds, releases or kubernetes with --engines",
    )
    parser.add_argument("--few", action="store_true", help="only the tests that may differ between versions")
    parser.add_argument("--python", help="minor version of Python")
    parser.add_argument("--pythons", action="store_true", help="the newest Airflow on each Python")
    parser.add_argument("--bounds", action="store_true", help="tests of each extra with lowest and newest versions")
    parser.add_argument("--engines", action="store_true", help="tests of engines on other versions of them")
    parser.add_argument("--tests", action="append", default=[], help="a file or folder to run instead; repeatable")
    given = parser.parse_args()
    known = found["engine_tests"] if given.engines else found["extras"] if given.bounds else rows
    if unknown := {*given.names} - {*known}:
        parser.error(f"there are {', '.join(known)}, not {', '.join(sorted(unknown))}")
    if given.engines:
        return max(run_engines(each, given.tests or known[each]) for each in given.names or known)
    newest, *older = rows.values()
    if given.pythons:
        tests = given.tests or found["without_engines"]
        pythons = [given.python] if given.python else newest["pythons"]
        ends = (newest["pythons"][0], newest["pythons"][-1])
        # Tests without engines read answers of all of them, for which they need the packages of all extras.
        return max(run_version(newest, python, tests if python in ends else [], "all") for python in pythons)
    if given.bounds:
        runs = {each: given.tests or known[each] for each in given.names or known}
        return max(run_bounds(each, tests, older[-1], newest) for each, tests in runs.items())
    tests = given.tests or found["few" if given.few else "most"]
    statuses = [
        run_version(row, given.python or row["pythons"][0], tests)
        for row in ([rows[name] for name in given.names] or older)
    ]
    return max(statuses, default=0)


if __name__ == "__main__":
    sys.exit(main())
