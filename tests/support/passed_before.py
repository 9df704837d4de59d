"""Skips engine tests that passed on the same content in an earlier run on this machine.

`LAUNCH_TESTS_CACHE=folder` enables it: `.ci/run` sets it, `make soak` never. A test is skipped if it is marked with an
engine, passed at its first try in the last seven days, and none of its inputs has changed: its own file, the package
without unreachable parts, the helpers of the tests, the versions of the engines. Comments do not count, nor do those
docstrings that no program reads. The summary of the run lists the number of skipped tests of each file.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.role_page import rules_of_the_page

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PACKAGE = "airflow_provider_launch"
KEPT_S = 7 * 24 * 3600
PROPERTY = "passed_before"
BACKENDS = {
    "docker": "docker",
    "dockerd": "docker",
    "registry": "docker",
    "kubernetes": "kubernetes",
    "kube-apiserver": "kubernetes",
    "kueue": "kubernetes",
    "aws_batch": "aws_batch",
    "slurm": "slurm",
    "slurmctld": "slurm",
    "slurmdbd": "slurm",
}
"""Engine -> the folder of its backend in the package, and of its tests."""
SHELL = ("get_provider_info", "cli", "pipelines", "decorators", "operators", "sensors", "triggers", "_task", "links")
"""Top layers, which lower layers do not import (checked by import-linter): only tests that name one can reach it."""
BY_NAME = ("tests/airflow", "tests/live", "tests/pipelines")
ITSELF = "tests/support/passed_before.py"
ABOVE_ALL = ("pyproject.toml", "constraints.txt")
DEBIAN = (
    "docker.io",
    "containerd",
    "runc",
    "docker-registry",
    "slurm-wlm",
    "munge",
    "openssh-server",
    "mariadb-server",
)


class PassedBefore:
    """The plugin, for one session."""

    def __init__(self, folder: Path, now: float | None = None) -> None:
        self._folder = folder
        self._now = time.time() if now is None else now
        self._passed: dict[str, str] = {}  # node id -> key of its content
        self._repeated: set[str] = set()
        self._left_out: Counter[str] = Counter()

    def pytest_configure_node(self, node: Any) -> None:
        """Give each xdist worker the same list, because all must collect the same tests."""
        node.workerinput[PROPERTY] = sorted(self._read())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        before = {*config.workerinput[PROPERTY]} if hasattr(config, "workerinput") else self._read()
        left_out = []
        for item in items:
            if key := _key(item):
                item.user_properties.append((PROPERTY, key))
                if _entry(item.nodeid, key) in before:
                    left_out.append(item)
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            gone = {*left_out}
            items[:] = [item for item in items if item not in gone]
        self._left_out = Counter(item.nodeid.partition("::")[0] for item in left_out)
        if hasattr(config, "workeroutput"):
            config.workeroutput[PROPERTY] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out = Counter(getattr(node, "workeroutput", {}).get(PROPERTY, {})) or self._left_out

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":
            self._repeated.add(report.nodeid)
        key = dict(report.user_properties).get(PROPERTY)
        if key and report.when == "call" and report.passed:
            self._passed[report.nodeid] = str(key)
        elif report.failed:
            self._passed.pop(report.nodeid, None)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or not self._passed:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob("*.json"):
            if self._is_old(old):
                old.unlink(missing_ok=True)
        lines = [_entry(test, key) for test, key in self._passed.items() if test not in self._repeated]
        (self._folder / f"{time.time_ns()}.json").write_text(json.dumps(lines), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._left_out:
            return
        terminalreporter.section("left out: passed on the same content in the last seven days")
        for file, tests in sorted(self._left_out.items()):
            terminalreporter.write_line(f"{tests:5} {file}")

    def _read(self) -> set[str]:
        files = [file for file in self._folder.glob("*.json") if not self._is_old(file)]
        return {entry for file in files for entry in json.loads(file.read_text(encoding="utf-8"))}

    def _is_old(self, file: Path) -> bool:
        return self._now - file.stat().st_mtime > KEPT_S


def _entry(nodeid: str, key: str) -> str:
    return hashlib.sha256(f"{nodeid} {key}".encode()).hexdigest()[:32]


def _key(item: pytest.Item) -> str | None:
    engines = {str(mark.args[0]) for mark in item.iter_markers("engine")}
    backends = frozenset(BACKENDS[engine] for engine in engines & {*BACKENDS})
    if not backends:
        return None
    return content_key(item.path.relative_to(CHECKOUT).as_posix(), backends)


@functools.cache
def content_key(test: str, backends: frozenset[str]) -> str:
    """Return a hash of all files that a test file can reach."""
    digest = hashlib.sha256(f"{sys.version} {_versions()}".encode())
    for name in reachable(test, backends):
        digest.update(f"{name} {_hashes()[name]}\n".encode())
    if rules_of_the_page.__name__ in _text(test):
        digest.update(repr(rules_of_the_page(CHECKOUT)).encode())
    return digest.hexdigest()


def reachable(test: str, backends: frozenset[str]) -> list[str]:
    """Return the files that a test file of these backends can reach."""
    folder = test.rpartition("/")[0]
    helpers = _helpers(test, backends)
    near = [test, *(name for name in helpers if _room(name) == _room(test))]
    text = "\n".join(_text(name) for name in near if name.endswith(".py"))
    borrowed = [f"{name.replace('.', '/')}.py" for name in re.findall(r"\btests\.[a-z_.]*test_\w+", text)]
    rooms = [f"{PACKAGE}/schedulers/{backend}" for backend in {*BACKENDS.values(), "local"} - backends]
    # Tests of the Airflow layers load most modules by name; DAG files are text. Only pipelines import pipelines.
    rooms += [f"{PACKAGE}/{room}" for room in SHELL if folder not in BY_NAME or room == "pipelines"]
    out = tuple(room for room in rooms if not re.search(_named(room), text))
    package = [name for name in _hashes() if name.startswith(f"{PACKAGE}/") and not _in(name, out)]
    folders = {"docs/": r"\bdocs\b", "example_dags/": "example_dags|wordcount"}
    read = [name for name, words in folders.items() if re.search(words, text)]
    top = [name for name in _hashes() if name.startswith((*ABOVE_ALL, *read))]
    return sorted({test, *helpers, *package, *top, *borrowed} & {*_hashes()})


def _named(room: str) -> str:
    """Return a pattern for texts that use a room of the package; the local scheduler is also used by its name."""
    pattern = rf"\b{room.replace('/', '.')}\b"
    return rf"{pattern}|[\"']local[\"']|local://|support\.local" if room.endswith("/local") else pattern


def _helpers(test: str, backends: frozenset[str]) -> list[str]:
    """Return the helpers in the folder of a test, those of all tests, and those in folders that these name."""
    names = [name for name in _hashes() if name.startswith("tests/") and not _is_test(name) and name != ITSELF]
    reached = {"tests", "tests/support", "tests/faults", "tests/engines"}
    rooms = {_room(test), *(f"tests/engines/{backend}" for backend in backends)}
    todo = [test]
    while todo:
        for found in re.findall(r"\btests\.([a-z_]+(?:\.[a-z_]+)?)", _text(todo.pop())):
            rooms.add(_room(f"tests/{found.replace('.', '/')}/"))
        new = rooms - reached
        reached |= new
        todo += [name for name in names if _room(name) in new and name.endswith(".py")]
    return [name for name in names if _room(name) in reached]


def _room(name: str) -> str:
    """Return the folder of a file of the tests; those of engines and broken schedulers count on their own."""
    folders = name.split("/")[:-1]
    return "/".join(folders[: 3 if folders[1:2] in (["engines"], ["contract"]) else 2])


def _in(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == f"{room}.py" or name.startswith(f"{room}/") for room in rooms)


def _is_test(name: str) -> bool:
    return name.rpartition("/")[2].startswith("test_")


@functools.cache
def _hashes() -> dict[str, str]:
    """Return the hash of each file of the checkout, without files that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return {
        name: hashlib.sha256(_content(CHECKOUT / name)).hexdigest()
        for name in sorted(listed.split("\0"))
        if name and (CHECKOUT / name).is_file()
    }


def _content(file: Path) -> bytes:
    """Return what a program can notice of a file.

    The docstrings of classes and components are read for help texts, and DAG files are also shown as text.
    """
    name = file.relative_to(CHECKOUT).as_posix()
    if file.suffix != ".py" or not name.startswith((f"{PACKAGE}/", "tests/")):
        return file.read_bytes()
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        unread = ast.Module if "components" in name else (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
        if name.startswith(PACKAGE) and isinstance(node, unread) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree).encode()


@functools.cache
def _text(name: str) -> str:
    return (CHECKOUT / name).read_text(encoding="utf-8")


@functools.cache
def _versions() -> str:
    """Return the versions of the engines that Debian installed; all others are pinned in files of the tests."""
    if not shutil.which("dpkg-query"):
        return ""
    asked = ["dpkg-query", "--show", "--showformat", "${Package}=${Version} ", *DEBIAN]
    return subprocess.run(asked, capture_output=True, check=False, text=True).stdout


def create_plugin() -> PassedBefore | None:
    """Return the plug-in if the environment requests it."""
    folder = os.environ.get("LAUNCH_TESTS_CACHE")
    if not folder or os.environ.get("LAUNCH_SOAK"):
        return None
    return PassedBefore(Path(folder).expanduser())
