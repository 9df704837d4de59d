"""A user who follows a page keeps the Airflow that is installed; an older one is refused with one sentence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_launch._airflow import LOWEST

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "changelog.d").glob("*.md"),
    ROOT / "CHANGELOG.md",
]
SOURCES = [
    *(ROOT / "example_dags").rglob("*.py"),
    *(path for path in (ROOT / "airflow_provider_launch").rglob("*.py") if "example_dags" not in path.parts),
]
OF_AIRFLOW = ["decorators", "hooks", "links", "operators", "sensors", "triggers"]


INSTALLED = "==$(airflow version)"
PIN = re.compile(r"apache-airflow(\[\w+\])?==installed")
BRINGS_AIRFLOW = re.compile(r"apache-airflow|airflow[-_]provider[-_]launch|\.?/|\.$|dist/|git\+")


def installs(text: str) -> list[list[str]]:
    """Return what each command in a text installs."""
    commands = re.findall(r"(?:pip3?|pipx|uv tool|uv) (?:install|add) +([^`\n;&]+)", text.replace("\\\n", " "))
    return [
        [word for word in re.sub(r"[\"']", "", command).replace(INSTALLED, "==installed").split() if word != "#"]
        for command in commands
    ]


def unpinned(text: str) -> list[str]:
    """Return the commands that may bring another Airflow than the one that is installed."""
    return [
        " ".join(words)
        for words in installs(text)
        if any(BRINGS_AIRFLOW.match(word) for word in words) and not any(PIN.fullmatch(word) for word in words)
    ]


def test_every_line_that_installs_the_package_pins_airflow():
    """Otherwise pip may replace the Airflow of a deployment, and `airflow db migrate` its database."""
    found = {page.name: unpinned(page.read_text(encoding="utf-8")) for page in [*PAGES, *SOURCES]}

    assert {name: commands for name, commands in found.items() if commands} == {}


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("pip install airflow-provider-launch", True),
        ("`python -m pip install -U 'airflow-provider-launch[docker]'`", True),
        ('pip install "apache-airflow[statsd]"', True),
        ("pip install .", True),
        ("make build && pip install dist/airflow_provider_launch-*.whl", True),
        ("uv pip install \\\n  airflow-provider-launch", True),
        ("pip install apache-airflow-providers-amazon", True),
        ('pip install "apache-airflow==3.3.2" .', True),
        ('pip install "apache-airflow==$(airflow version)" .    # the checkout', False),
        ('pip install "apache-airflow[statsd]==$(airflow version)"', False),
        ("pip install fsspec; pip install 'docker[ssh]'", False),
        ("Pin it in every `pip install`; airflow-provider-launch is then", False),
    ],
)
def test_a_command_that_may_change_airflow_is_found(text, is_found):
    assert bool(unpinned(text)) == is_found


def test_each_way_of_installing_is_described():
    """From an index, from a checkout and from a wheel; each scheduler's page names its extra."""
    commands = [words for page in PAGES for words in installs(page.read_text(encoding="utf-8"))]
    named = {word for words in commands for word in words}

    assert {"airflow-provider-launch", ".", "dist/airflow_provider_launch-*.whl"} <= named
    extras = {"docker", "kubernetes", "aws", "slurm", "testing"}
    assert {f"airflow-provider-launch[{extra}]" for extra in extras} <= named


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
