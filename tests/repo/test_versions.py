"""One file lists the versions; what promises or tests a version agrees with it."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from airflow_provider_launch._airflow import LOWEST
from tests.engines.releases.roots import RELEASES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
MATRIX = yaml.safe_load((ROOT / "tools" / "versions.yaml").read_text(encoding="utf-8"))
SUPPORTED = [row for row in MATRIX["airflow"] if row["promise"] == "supported"]
OTHERS = [row for row in MATRIX["airflow"] if row not in SUPPORTED]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def tool() -> ModuleType:
    """The module of `make versions`."""
    spec = importlib.util.spec_from_file_location("launch_tools_versions", ROOT / "tools" / "versions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_oldest_supported_version_is_the_bound() -> None:
    (bound,) = (found for text in PROJECT["dependencies"] if (found := Requirement(text)).name == "apache-airflow")

    assert SUPPORTED[-1]["version"] == ".".join(map(str, LOWEST))
    assert all(bound.specifier.contains(row["patch"]) for row in SUPPORTED)
    assert not any(bound.specifier.contains(f"{row['version']}.99") for row in OTHERS)


def test_each_supported_version_is_tested_with_one_of_its_patches() -> None:
    for row in SUPPORTED:
        assert str(row["patch"]).startswith(f"{row['version']}.")
        # Without a date, dependencies that are made for a newer Airflow would be installed.
        assert ("before" in row) == (row is not SUPPORTED[0])


def test_the_classifiers_name_the_pythons() -> None:
    named = {found[1] for text in PROJECT["classifiers"] if (found := re.fullmatch(r".* :: (3\.\d+)", text))}

    assert named == {python for row in SUPPORTED for python in row["pythons"]}
    needed = SpecifierSet(PROJECT["requires-python"])
    assert all(needed.contains(python) for python in named)
    assert not needed.contains(f"3.{min(Version(python).minor for python in named) - 1}")


@pytest.mark.parametrize("kind", ["few", "most", "without_engines"])
def test_the_tests_of_versions_exist(kind: str) -> None:
    assert [path for path in MATRIX[kind] if not (ROOT / path).exists()] == []


def test_the_releases_with_newer_engines_can_be_made() -> None:
    assert set(MATRIX["engine_tests"]) == {*RELEASES, "kubernetes"}
    assert {row["release"] for row in MATRIX["engines"] if "release" in row} == set(RELEASES)
    assert [path for paths in MATRIX["engine_tests"].values() for path in paths if not (ROOT / path).exists()] == []


def test_each_engine_states_what_was_run() -> None:
    assert all(len({"every", "once"} & set(row)) == 1 for row in MATRIX["engines"])


@pytest.mark.parametrize("engine", ["Docker", "Slurm"])
def test_the_page_of_an_engine_names_the_tested_versions(engine) -> None:
    text = (ROOT / "docs" / f"{engine.lower()}.md").read_text(encoding="utf-8")
    named = {row["version"].removeprefix("next (").rstrip(")") for row in MATRIX["engines"] if row["engine"] == engine}

    assert {version for version in named if version not in text and not version.startswith("API")} == set()


def kubernetes_of(module: str) -> str:
    """Return the version of Kubernetes that a module of the tests builds."""
    text = (ROOT / "tests/engines/kubernetes/go" / module / "go.mod").read_text(encoding="utf-8")
    (built,) = {".".join(found) for found in re.findall(r"k8s\.io/kubernetes v(\d+)\.(\d+)", text)}
    return built


def test_kubernetes_is_the_version_that_the_tests_build() -> None:
    built = [kubernetes_of(module) for module in ("kubernetes-oldest", "kubernetes")]

    assert built == [row["version"] for row in MATRIX["engines"] if row["engine"] == "Kubernetes"]


def test_the_page_of_kubernetes_promises_the_oldest_version_that_the_tests_build() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")

    assert f"version {kubernetes_of('kubernetes-oldest')} or newer" in page


def test_each_difference_names_a_supported_version_before_the_newest() -> None:
    assert {one["until"] for one in MATRIX["weaker"]} <= {row["version"] for row in SUPPORTED[1:]}


def test_the_guarantees_name_the_exceptions() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")

    assert "versions.md#weaker-guarantees-before-airflow-33" in page


def test_ci_runs_the_versions() -> None:
    assert "make versions" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--engines", "bookworm"], "there are trixie, forky, kubernetes, not bookworm"),
        (["2.0"], "there are 3.3, 3.2, 3.1, not 2.0"),
        (
            ["--bounds", "3.1"],
            "there are docker, ssh, kubernetes, aws, slurm, fsspec, hydra, notebooks, testing, not 3.1",
        ),
    ],
)
def test_an_unknown_name_is_refused(tool, capsys, monkeypatch, arguments, text) -> None:
    monkeypatch.setattr(sys, "argv", ["versions.py", *arguments])

    with pytest.raises(SystemExit):
        tool.main()
    assert text in capsys.readouterr().err


def test_the_live_suite_starts_one_airflow(tool) -> None:
    """With several processes of pytest each would start its own."""
    *_, others, live = tool.commands(Path("python"), ["tests/airflow", "tests/live/test_tries.py", "tests/upgrade"])

    assert others[-4:] == ["-n", "2", "tests/airflow", "tests/upgrade"]
    assert live[-3:] == ["-n", "0", "tests/live/test_tries.py"]
