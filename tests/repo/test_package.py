"""The wheel and the sdist, and the wheel alone in an environment without the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.backends import BACKENDS

ROOT = Path(__file__).resolve().parents[2]
# Each file with a DAG has one, of its own name; the others are the programs of the apps.
MAKES_DAG = re.compile(r"\bDAG\(|^@dag|\bdag_from_file\(", re.MULTILINE)
DAGS = sorted(
    path.stem for path in (ROOT / "example_dags").glob("*.py") if MAKES_DAG.search(path.read_text(encoding="utf-8"))
)
CONNECTIONS = sorted(["launch", *(backend.connection_type for backend in BACKENDS.values())])

LOOK = """
import json, sys
from importlib.metadata import entry_points
from airflow.providers_manager import ProvidersManager
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag

manager = DagBundlesManager()
bundles = {bundle.name: bundle for bundle in manager.get_all_dag_bundles()}
bundle = bundles["airflow-provider-launch-example-dags"]
bag = DagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
providers = ProvidersManager()
import airflow_provider_launch
print("FOUND " + json.dumps({
    "module": list(airflow_provider_launch.__path__)[0],
    "folder": str(bundle.path),
    "dags": sorted(bag.dags),
    "errors": dict(bag.import_errors),
    "provider": providers.providers["airflow-provider-launch"].version,
    "connections": sorted(name for name, hook in providers.hooks.items() if name.startswith("launch") and hook),
}))
"""


def tracked(folder: str) -> set[str]:
    """Files that belong to the project; without git, those of an unpacked sdist."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    except (OSError, subprocess.CalledProcessError):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path.relative_to(ROOT).as_posix() for path in files}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist, built by the installed hatchling, without an index."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """An environment that has the wheel, and from the present one all but the checkout."""
    wheel, _ = built
    env = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True, timeout=120)
    python = env / "bin" / "python"
    site = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # A .pth adds the directory of the dependencies, yet does not process that directory's own .pth: the editable
    # install of the checkout is thereby left out. Its dist-info is seen, but ours comes first.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, code: str, home: Path) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTHON"))}
    env |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "True",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home),
    }
    done = subprocess.run(
        [python, "-c", code], cwd=home, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def look(python: Path, home: Path) -> dict:
    found = re.search(r"^FOUND (.*)$", run(python, LOOK, home), re.MULTILINE)
    return json.loads(found.group(1))


def test_wheel_has_the_module_the_examples_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}

    module = {
        name
        for name in tracked("airflow_provider_launch")
        if not name.startswith("airflow_provider_launch/example_dags")
    }
    examples = {f"airflow_provider_launch/{name}" for name in tracked("example_dags")}
    shipped = {name for name in names if ".dist-info/" not in name}
    assert shipped == module | examples
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_is_marked_as_typed(built):
    with zipfile.ZipFile(built[0]) as archive:
        assert "airflow_provider_launch/py.typed" in archive.namelist()


def test_sdist_has_everything_to_work_on(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    folders = ["airflow_provider_launch", "example_dags", "tests", "docs", "bench", "tools", "changelog.d"]
    wanted = set().union(*map(tracked, folders)) | {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    }
    assert {name for name in wanted if not name.startswith("airflow_provider_launch/example_dags")} <= names


def test_wheel_from_the_sdist_equals_the_wheel_from_the_checkout(built, tmp_path):
    """Downstream packagers build from the sdist, where the symlink is a folder."""
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "out")],
        cwd=unpacked, check=True, capture_output=True, timeout=120,
    )  # fmt: skip

    (rebuilt,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(rebuilt) as two:
        assert sorted(one.namelist()) == sorted(two.namelist())


def test_installed_wheel_registers_provider_bundle_and_examples(installed, tmp_path):
    found = look(installed, tmp_path)

    assert found["errors"] == {}
    assert found["dags"] == DAGS
    assert found["connections"] == CONNECTIONS
    assert str(ROOT) not in found["module"]
    assert found["folder"].startswith(found["module"])


def test_checkout_registers_provider_bundle_and_examples(tmp_path):
    """The editable install which `make` sets up."""
    found = look(Path(sys.executable), tmp_path)

    assert found["errors"] == {}
    assert found["dags"] == DAGS
    assert found["connections"] == CONNECTIONS
    assert found["folder"] == str(ROOT / "airflow_provider_launch" / "example_dags")


def test_committed_files_name_no_host_of_a_registry():
    """The source of packages depends on the machine."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8") + (ROOT / "pyproject.toml").read_text(
        encoding="utf-8"
    )

    assert not re.search(r"index-url|find-links|extra-index", text)
    assert "://" not in (ROOT / "constraints.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_the_tasks():
    shown = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)

    for task in ["demo", "demo-ui", "test", "lint", "types", "gen", "docs", "bench", "build", "clean"]:
        assert f"make {task} " in shown.stdout
