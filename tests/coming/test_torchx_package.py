"""A package with a scheduler, components, a named resource and a tracker for TorchX changes only its imports."""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch import plugins
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.specs import named_resources
from tests.airflow.support import a_dag

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.timeout(300)

PACKAGE = Path(__file__).parent / "acme_launch"
_IMPORT = re.compile(r"^(from|import) torchx\b", re.MULTILINE)
_GROUP = re.compile(r'^(\[project\.entry-points\.")torchx\b', re.MULTILINE)
CONFIG = """
[acme]
greeting = hello

[torchx:tracker]
acme =

[tracker:acme]
config = {runs}
"""


def moved(text: str) -> str:
    """Return a file of the package after the move."""
    return _GROUP.sub(r"\1airflow_provider_launch", _IMPORT.sub(r"\1 airflow_provider_launch", text))


class Installed:
    """The package as pip installs it, below a directory; its apps and runs are there, too."""

    def __init__(self, folder: Path, *, is_moved: bool) -> None:
        self.folder = folder
        self.site = folder / "site"
        for source in (*PACKAGE.glob("acme/*.py"), PACKAGE / "pyproject.toml"):
            text = source.read_text(encoding="utf-8")
            target = self.site / source.relative_to(PACKAGE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(moved(text) if is_moved else text, encoding="utf-8")
        project = tomllib.loads((self.site / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = self.site / "acme_launch-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-launch\nVersion: 1.0\n")
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        (folder / ".torchxconfig").write_text(CONFIG.format(runs=folder / "runs"))
        (folder / "home").mkdir()

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "TORCHX"))}
        return {**kept, "PYTHONPATH": str(self.site), "HOME": str(self.folder / "home")}

    def launch(self, python: str) -> dict[str, Any]:
        """Run the script of the team, and return what it sees."""
        done = subprocess.run(
            [python, "-m", "acme.launch", self.folder / "apps", self.folder / "runs"],
            cwd=self.folder,
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def after(tmp_path) -> Installed:
    return Installed(tmp_path / "after", is_moved=True)


def test_only_imports_and_groups_of_entry_points_change():
    for source in (*PACKAGE.glob("acme/*.py"), PACKAGE / "pyproject.toml"):
        text = source.read_text(encoding="utf-8")
        lines = difflib.ndiff(text.splitlines(), moved(text).splitlines())
        changed = [line[2:] for line in lines if line.startswith(("+ ", "- "))]
        assert all(line.startswith(("from ", "import ", "[project.entry-points.")) for line in changed), changed


def test_a_script_sees_the_same_before_and_after(tmp_path, after, peer_python):
    before = Installed(tmp_path / "before", is_moved=False).launch(str(peer_python("torchx")))

    assert after.launch(sys.executable) == before
    assert before["logs"] == [["hello from 0 in acme\n"], ["hello from 1 in acme\n"]]
    assert before["metadata"] == {"epochs": 3, "loss": 0.5}
    assert before["tests"] == [1]


def test_a_task_runs_its_component_on_its_scheduler(moves, after, monkeypatch, unique):
    monkeypatch.syspath_prepend(str(after.site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(after.site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("HOME", str(after.folder / "home"))
    cfg = {"root": str(after.folder / "apps"), "greeting": "hello"}
    known = {"conn_type": "launch", "extra": {"scheduler": "acme", "cfg": cfg}}
    # Plug-ins that were found before the package was installed.
    plugins.registry.clear()
    named_resources.reset()
    monkeypatch.setenv("AIRFLOW_CONN_ACME", json.dumps(known))
    try:
        with a_dag():
            arguments = {"epochs": 3, "name": unique}
            task = LaunchAppOperator(
                task_id=unique, launch_conn_id="acme", component="acme.train", component_args=arguments
            )
        ran, value = moves.run(task)
    finally:
        plugins.registry.clear()
        named_resources.reset()
        for module in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
            del sys.modules[module]

    assert ran.state == "success", ran.error
    assert {"[trainer/0] hello from 0 in acme", "[trainer/1] hello from 1 in acme"} <= set(ran.lines)
    assert value["handle"].startswith("acme://acme/")
