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
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.repeats import often

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)")
PYTHONS = [found[1] for name in PROJECT["classifiers"] if (found := _PYTHON.fullmatch(name))]
_BY_AIRFLOW = {"airflow"}  # several distributions share the package
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


# A resolution takes half a minute of one core; it changes with the two files that describe it.
@pytest.mark.parametrize("python", often(PYTHONS[:1], PYTHONS))
def test_all_extras_fit_the_constraints(python, tmp_path):
    """The documented install commands and `make setup` work, also on the first patch release of each Python."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed; make setup does it")
    command = [
        uv, "pip", "compile", str(ROOT / "pyproject.toml"), "--all-extras", "--python-version", f"{python}.0",
        "--group", f"{ROOT / 'pyproject.toml'}:dev",
        "--constraint", str(ROOT / "constraints.txt"), "--no-header", "--output-file", str(tmp_path / "pins.txt"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode and _UNREACHABLE.search(done.stderr):
        pytest.skip(f"the package index does not answer: {done.stderr.strip().splitlines()[-1]}")

    assert done.returncode == 0, done.stderr
