"""A user who follows a page keeps the Airflow that is installed; an older one is refused with one sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_launch._airflow import LOWEST

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
OF_AIRFLOW = ["decorators", "hooks", "links", "operators", "sensors", "triggers"]


def test_every_line_that_installs_the_package_pins_airflow():
    lines = [
        line
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install .*airflow.provider.launch", line)
    ]

    assert len(lines) > 5
    assert [line for line in lines if 'pip install "apache-airflow==$(airflow version)" ' not in line] == []


def test_only_a_new_installation_migrates_a_database():
    found = [page.name for page in PAGES if "airflow db migrate" in page.read_text(encoding="utf-8")]

    assert found == ["quickstart.md"]


def imported(path: Path, name: str, installed: str, part: str) -> subprocess.CompletedProcess[str]:
    """Import a part of the package with a fake version of a distribution."""
    info = path / f"{name.replace('-', '_')}-{installed}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {installed}\n")
    script = f"import sys; sys.path.insert(0, {str(path)!r}); import airflow_provider_launch.{part}"
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("part", OF_AIRFLOW)
def test_an_older_airflow_is_refused_with_one_sentence(tmp_path, part):
    done = imported(tmp_path, "apache-airflow-core", "2.11.2", part)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: airflow-provider-launch needs Airflow 3.1 or newer, but Airflow 2.11.2 is installed:"
        " upgrade Airflow first, or uninstall airflow-provider-launch"
    )


@pytest.mark.parametrize("installed", ["3.0.6", "3.1.0", "3.2.2", "3.3.0rc1", "3.10.1", "4.0"])
def test_a_newer_airflow_is_not_refused(tmp_path, installed):
    done = imported(tmp_path, "apache-airflow-core", installed, "links")

    assert done.returncode == 0, done.stderr


def test_the_launcher_without_airflow_asks_for_no_version(tmp_path):
    done = imported(tmp_path, "apache-airflow-core", "2.11.2", "runner")

    assert done.returncode == 0, done.stderr


def test_the_bound_is_the_one_that_pip_sees():
    assert f'"apache-airflow>={LOWEST[0]}.{LOWEST[1]},' in (ROOT / "pyproject.toml").read_text()
