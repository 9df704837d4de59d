"""All imports are declared, and the declared versions fit together on every supported Python."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.repeats import often

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MATRIX = yaml.safe_load((ROOT / "tools" / "versions.yaml").read_text(encoding="utf-8"))
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)")
PYTHONS = [found[1] for name in PROJECT["classifiers"] if (found := _PYTHON.fullmatch(name))]
_BY_AIRFLOW = {"airflow", "upath"}  # several distributions share the package; a base class of ObjectStoragePath
_OPTIONAL = {"openlineage"}  # used where its provider is installed
_UNREACHABLE = re.compile(
    r"error sending request|failed to (fetch|connect)|dns error|connection refused|timed out", re.IGNORECASE
)


def imported() -> dict[str, Path]:
    """Return each top-level module that the package imports, and a file that does it."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / "airflow_provider_launch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                found.setdefault(name.partition(".")[0], path.relative_to(ROOT))
    return found


def declared() -> set[str]:
    """Return the distributions that the package requires, alone or with an extra."""
    texts = [*PROJECT["dependencies"], *(text for texts in PROJECT["optional-dependencies"].values() for text in texts)]
    return {canonicalize_name(Requirement(text).name) for text in texts}


def test_what_is_imported_is_declared():
    """An undeclared module disappears when the distribution that brought it no longer needs it."""
    distributions = packages_distributions()
    known = sys.stdlib_module_names | {"airflow_provider_launch"} | _BY_AIRFLOW | _OPTIONAL
    missing = {
        name: str(path)
        for name, path in imported().items()
        if name not in known and not declared() & {canonicalize_name(each) for each in distributions.get(name, ())}
    }

    assert missing == {}, "add the distribution to dependencies or to an extra of pyproject.toml"


def test_every_supported_python_is_named():
    assert PYTHONS == ["3.10", "3.11", "3.12", "3.13"]


def resolved(python: str, *arguments: str) -> dict[str, Version]:
    """Return the version of each package that uv chooses for the project with all extras."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed; make setup does it")
    command = [
        uv, "pip", "compile", str(ROOT / "pyproject.toml"), "--all-extras", "--python-version", f"{python}.0",
        "--no-header", "--no-annotate", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode and _UNREACHABLE.search(done.stderr):
        pytest.skip(f"the package index does not answer: {done.stderr.strip().splitlines()[-1]}")

    assert done.returncode == 0, done.stderr
    pins = (line.partition(" ;")[0].partition("==") for line in done.stdout.splitlines())
    return {canonicalize_name(name): Version(version) for name, _, version in pins if version}


# A resolution takes half a minute of one core; it changes with the two files that describe it.
@pytest.mark.parametrize("python", often(PYTHONS[:1], PYTHONS))
def test_all_extras_and_other_providers_fit_the_constraints(python):
    """The documented install commands and `make setup` work, also on the first patch release of each Python.

    Cure: `make constraints`. The group "neighbours" has lower bounds, because uv would otherwise take an ancient
    version of a provider that does not fit.
    """
    groups = [f"--group={ROOT / 'pyproject.toml'}:{group}" for group in ("dev", "neighbours")]
    found = resolved(python, *groups, "--constraint", str(ROOT / "constraints.txt"))

    assert {each.name for each in neighbours()} <= found.keys()


def neighbours() -> list[Requirement]:
    return [
        Requirement(text)
        for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["neighbours"]
    ]


def test_the_constraints_have_the_other_providers():
    """Otherwise `-c constraints.txt` may forbid them: kubernetes 37 did not fit Airflow's own provider."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(Requirement(line).name) for line in lines if not line.startswith("#")}

    named = {each.name.removeprefix("apache-airflow-providers-") for each in neighbours()}
    assert named == {"cncf-kubernetes", "docker", "amazon", "openlineage", "celery", "postgres", "fab"}
    assert {each.name for each in neighbours()} <= pinned


def test_the_lowest_versions_fit_together():
    """`make versions ARGS=--bounds` runs the tests of each extra with them."""
    oldest = [row for row in MATRIX["airflow"] if "patch" in row][-1]
    found = resolved(PYTHONS[0], "--resolution", "lowest-direct", "--exclude-newer", f"{oldest['before']}T00:00:00Z")

    assert str(found["apache-airflow"]).startswith(oldest["version"])


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"].keys() - {"all"}))
def test_each_extra_has_tests_for_its_bounds(extra):
    tests = MATRIX["extras"][extra]

    assert tests
    assert [path for path in tests if not (ROOT / path).exists()] == []
