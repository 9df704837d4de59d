"""Two test runs that share the work: the second skips tests that passed in the first.

`LAUNCH_TESTS_PASSED=file` makes a run write the tests that passed, `LAUNCH_TESTS_LEAVE_OUT=file` leaves them out.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class TwoRuns:
    """The plugin, for one session."""

    def __init__(self) -> None:
        self._passed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._passed.append(report.nodeid)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not (name := os.environ.get("LAUNCH_TESTS_LEAVE_OUT")):
            return
        left_out = {*Path(name).read_text(encoding="utf-8").splitlines()}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # An xdist worker has only its own results.
        if (name := os.environ.get("LAUNCH_TESTS_PASSED")) and not hasattr(session.config, "workerinput"):
            Path(name).write_text("\n".join(self._passed), encoding="utf-8")
