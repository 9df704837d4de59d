"""Each backend's folder keeps its layers, so that pure code needs no engine in tests and DAG files parse fast."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import airflow_provider_launch
from airflow_provider_launch.schedulers.backends import BACKENDS, BackendInfo

ROOT = Path(airflow_provider_launch.__file__).parent
PACKAGE = "airflow_provider_launch.schedulers"

TRANSPORT = {
    "access",
    "client",
    "engine",
    "images",
    "log_reader",
    "logs",
    "live_log",
    "ssh",
    "scheduler",
    "wire",
}
"""Modules that talk to an engine; only these may import its SDK, or run a command."""
PURE = {
    "containers",
    "manifests",
    "naming",
    "objects",
    "options",
    "overlay",
    "reconcile",
    "record",
    "request",
    "status",
}
"""Pure modules, which may not import modules that talk to an engine."""

every_backend = pytest.mark.parametrize("info", BACKENDS.values(), ids=lambda info: info.name)


def imports_of(path: Path, *, with_types: bool) -> Iterator[str]:
    """Yield what a module imports, within functions too; `with_types` also for the type checker."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if not with_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped |= set(ast.walk(node))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_of(info: BackendInfo) -> dict[str, Path]:
    return {path.stem: path for path in (ROOT / "schedulers" / info.name).glob("*.py")}


@every_backend
def test_it_has_the_files_that_every_backend_has(info: BackendInfo) -> None:
    assert {"options", "request", "status", "scheduler"} <= set(modules_of(info))


@every_backend
def test_only_what_talks_to_the_engine_imports_its_sdk(info: BackendInfo) -> None:
    for name, path in modules_of(info).items():
        used = {module.partition(".")[0] for module in imports_of(path, with_types=False)}
        assert name in TRANSPORT or not used & {*info.sdk}, f"{path.name} imports {sorted(used & {*info.sdk})}"


@every_backend
def test_pure_modules_import_pure_modules(info: BackendInfo) -> None:
    folder = f"{PACKAGE}.{info.name}"
    modules = modules_of(info)
    for name in PURE & set(modules):
        used = {
            module.removeprefix(f"{folder}.").partition(".")[0]
            for module in imports_of(modules[name], with_types=False)
            if module.startswith(f"{folder}.")
        }
        assert not used & TRANSPORT, f"{name}.py imports {sorted(used & TRANSPORT)}"
        assert "subprocess" not in set(imports_of(modules[name], with_types=False)), f"{name}.py runs commands"


@every_backend
def test_nothing_imports_its_scheduler_and_it_imports_no_other_backend(info: BackendInfo) -> None:
    others = tuple(f"{PACKAGE}.{other}" for other in BACKENDS if other != info.name)
    for name, path in modules_of(info).items():
        used = set(imports_of(path, with_types=True))
        is_imported = f"{PACKAGE}.{info.name}.scheduler" in used
        assert name == "__init__" or not is_imported, f"{name}.py imports the scheduler"
        assert not [module for module in used if module.startswith(others)], f"{name}.py knows another backend"


def test_the_kit_knows_no_backend() -> None:
    folders = tuple(f"{PACKAGE}.{name}" for name in BACKENDS)
    for path in (ROOT / "schedulers" / "_kit").glob("*.py"):
        assert not [module for module in imports_of(path, with_types=True) if module.startswith(folders)], path.name


@every_backend
def test_its_sdk_is_declared_and_may_not_be_imported_by_a_dag_file(info: BackendInfo, checkout: Path) -> None:
    import tomllib

    with (checkout / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    if info.extra is not None:
        extras = project["project"]["optional-dependencies"]
        assert info.extra in extras
        assert info.extra in " ".join(extras["all"])
        banned = project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"]
        assert info.sdk[0] in banned


@every_backend
def test_it_has_a_page_an_example_and_a_contract(info: BackendInfo, checkout: Path) -> None:
    assert (checkout / "docs" / info.page).is_file()
    assert f"]({info.page})" in (checkout / "docs" / "index.md").read_text(encoding="utf-8")
    assert (checkout / "example_dags" / f"launch_{info.name}_demo.py").is_file()
    assert (checkout / "tests" / "contract" / f"test_{info.name}.py").is_file()


# Other packages choose by capability. These have a reason to name an engine.
NAMES_ENGINES = {
    "schedulers/__init__.py": "`local_docker`, the second name that TorchX has for Docker",
    "schedulers/docker_scheduler.py": "the same",
    "connections/airflow_types.py": "the engine that a type of connection of Airflow belongs to",
    "connections/launch.py": "extras that only connections of AWS have",
    "connections/probes.py": "the test of a connection asks more than a list where an engine can tell more",
    "operators/_request.py": "the address of a repository of images begins with `docker://`, as in other tools",
    "workspace/docker_workspace.py": "images are built by a Docker engine, whatever runs them",
    "specs/named_resources_aws.py": "a label of Kubernetes' nodes",
}


def test_a_new_backend_touches_only_its_own_places(checkout: Path) -> None:
    """Its folder, its hook, its row, its engine and its page; other modules that name an engine need a reason here."""
    names = re.compile(r"\b(" + "|".join(name for name in BACKENDS if name != "local") + r")\b")
    found = set()
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        own = any(place.startswith(f"schedulers/{name}/") or place == f"hooks/{name}.py" for name in BACKENDS)
        if own or place == "schedulers/backends.py" or "__pycache__" in place:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        if any(isinstance(text.value, str) and names.search(text.value) for text in texts):
            found.add(place)

    assert found == set(NAMES_ENGINES)


def test_make_demo_has_a_connection_for_each_demo(checkout: Path) -> None:
    """The variables are those that Airflow reads, and their options are those of connections and launches."""
    command = [sys.executable, str(checkout / "tools" / "demo_connections.py"), "/tmp/a b"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    uris = dict(text.split("=", 1) for text in printed)

    for info in BACKENDS.values():
        uri = uris.pop(f"AIRFLOW_CONN_{info.default_conn_id.upper()}", None)
        assert (uri is None) == (info.demo_options is None)
        if uri is not None:
            given = {name: values[0] for name, values in parse_qs(urlsplit(uri).query).items()}
            models = (info.connection_options(), info.launch_options())
            assert all(any(name in model.__dataclass_fields__ for model in models) for name in given)
            assert urlsplit(uri).scheme.replace("-", "_") == info.connection_type
    assert not uris
