"""A base for tests of components, under the name that it has in TorchX."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import time
import unittest
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from airflow_provider_launch.specs.builders import materialize_appdef
from airflow_provider_launch.specs.check import check_app
from airflow_provider_launch.specs.file_linter import validate
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.statuses import AppStatus

__all__ = ["ComponentTestCase"]


class ComponentTestCase(unittest.TestCase):
    """Checks components in unit tests: `self.validate(my_components, "train")`."""

    test_dir: str
    """An empty directory, deleted after the test."""

    def setUp(self) -> None:  # noqa: D102 - a name of unittest
        self.test_dir = tempfile.mkdtemp("component_test")
        self.addCleanup(shutil.rmtree, self.test_dir, ignore_errors=True)

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fail if a function of a module is not a valid component.

        A function without parameters is also called, so its app must be valid.
        """
        problems = validate(inspect.getfile(module), function_name)
        if problems:
            self.fail("; ".join(map(str, problems)))
        function = getattr(module, function_name)
        if not inspect.signature(function).parameters:
            check_app(materialize_appdef(function, []))

    def run_component(
        self,
        component: Callable[..., AppDef],
        args: Mapping[str, Any] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        scheduler: str = "local_cwd",
        interval: float = 0.1,
        timeout: float = 1,
    ) -> AppStatus | None:
        """Run the app of a component, and return its last status: at its end, or after `timeout` seconds.

        Args:
            component: returns the app.
            args: its arguments.
            scheduler_params: keywords of the schedulers, as in `get_runner`.
            scheduler: where the app runs.
            interval: seconds between two polls.
            timeout: seconds; an app that runs longer continues.
        """
        # A component is below the runner.
        from airflow_provider_launch.runner import get_runner

        with get_runner(**(scheduler_params or {})) as runner:
            handle = runner.schedule(runner.dryrun(component(**(args or {})), scheduler))
            end = time.monotonic() + timeout
            status = runner.status(handle)
            while (status is None or not status.is_terminal()) and time.monotonic() < end:
                time.sleep(interval)
                status = runner.status(handle)
            return status
