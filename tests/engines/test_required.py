"""`LAUNCH_REQUIRE_ENGINES` and missing engines.

Each session has the hooks of our conftest and fake engines; nothing is installed or started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ENGINES

CONFTEST = """
    import os

    import pytest

    from tests import conftest as real
    from tests.conftest import pytest_report_header, pytest_runtest_setup, pytest_sessionstart
    from tests.engines.docker.daemon import EngineError
    from tests.support.engines import required

    def begin_gone(_):
        with open("begun", "a") as begun:
            begun.write("required\\n" if required("gone") else "wished\\n")
        raise EngineError("it is not built")

    real._BEGIN = {"here": lambda _: None, "gone": begin_gone}
    real.ENGINES = {"here": lambda: None, "gone": lambda: os.environ.get(f"{real._MISSING}gone")}
"""
TESTS = """
    import pytest

    @pytest.mark.engine("here")
    def test_here():
        pass

    @pytest.mark.engine("gone")
    def test_gone():
        pass

    def test_free():
        pass
"""


@pytest.fixture
def session(checkout: Path, tmp_path: Path):
    """Return a function that runs a session with two engines, `here` and `gone`, and this value of the variable."""
    files = {"pytest.ini": "[pytest]\nmarkers = engine(name)", "conftest.py": CONFTEST, "test_them.py": TESTS}
    for name, text in files.items():
        (tmp_path / name).write_text("\n".join(line.removeprefix("    ") for line in text.splitlines()) + "\n")

    def run(wanted: str | None, *args: str) -> subprocess.CompletedProcess[str]:
        return pytest_in(tmp_path, checkout, wanted, "--import-mode=importlib", *args)

    return run


def pytest_in(cwd: Path, checkout: Path, wanted: str | None, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a session without variables of the outer one."""
    ours = ("PYTEST_", "LAUNCH_", "DOCKER_", "COV_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # As tests that look for Docker would find it on a machine without one.
    env |= {"PYTHONPATH": str(checkout), "DOCKER_HOST": "unix:///absent/docker.sock"}
    if wanted is not None:
        env["LAUNCH_REQUIRE_ENGINES"] = wanted
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)


def begun(folder: Path) -> list[str]:
    """Return how the missing engine was requested, each time."""
    return (folder / "begun").read_text().split()


@pytest.mark.parametrize(("wanted", "workers"), [(None, "0"), ("", "0"), ("here", "2")])
def test_an_engine_that_is_not_required_is_skipped_with_its_reason(session, tmp_path, wanted, workers):
    """Workers get the result of the session, which searches once and never starts unrequested engines."""
    done = session(wanted, "-n", workers)

    assert done.returncode == 0, done
    assert "engine gone: it is not built" in done.stdout
    assert "2 passed, 1 skipped" in done.stdout
    assert begun(tmp_path) == ["wished"]


@pytest.mark.parametrize(("wanted", "workers"), [("all", "0"), (" gone , here,", "0"), ("gone", "2")])
def test_an_engine_that_is_required_and_missing_is_an_error(session, tmp_path, wanted, workers):
    """A passing run with `all` has run everything."""
    done = session(wanted, "-n", workers)

    assert done.returncode == 1, done
    assert "engine gone is required and missing: it is not built" in done.stdout
    assert "2 passed, 1 error" in done.stdout
    assert begun(tmp_path) == ["required"]


def test_the_top_of_a_run_shows_what_is_there_and_what_is_required(session):
    wishing, requiring = session(None), session("gone")

    assert "engines: here, gone (it is not built); required: those that answer" in wishing.stdout
    assert "engines: here, gone (it is not built); required: gone" in requiring.stdout


@pytest.mark.parametrize(("wanted", "workers"), [("gnoe", "0"), ("ALL", "0"), ("here,gnoe", "2")])
def test_a_name_of_no_engine_is_refused_before_any_is_made(session, tmp_path, wanted, workers):
    """Otherwise the intended tests would be skipped silently."""
    done = session(wanted, "-n", workers)

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    unknown = wanted.rpartition(",")[2]
    assert done.stderr.strip() == f"ERROR: LAUNCH_REQUIRE_ENGINES names {unknown!r}; known are here, gone, all"
    assert not (tmp_path / "begun").exists()


def test_our_own_sessions_refuse_it_too_and_name_all_engines(checkout):
    done = pytest_in(checkout, checkout, "dokcer", "--collect-only", "-q", "tests/util")

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"names 'dokcer'; known are {', '.join(ENGINES)}, all" in done.stderr
    assert not done.stdout.strip()
