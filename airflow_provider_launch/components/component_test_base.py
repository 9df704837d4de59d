"""A base for tests of components, under the name that it has in TorchX."""

from __future__ import annotations

import inspect
import unittest
from types import ModuleType

from airflow_provider_launch.specs.builders import materialize_appdef
from airflow_provider_launch.specs.check import check_app
from airflow_provider_launch.specs.file_linter import validate

__all__ = ["ComponentTestCase"]


class ComponentTestCase(unittest.TestCase):
    """Checks components in unit tests: `self.validate(my_components, "train")`."""

    def validate(self, module: ModuleType, function_name: str) -> None:
        """Fail if a function of a module is not a valid component.

        A function without required parameters is also called, so its app must be valid.
        """
        problems = validate(inspect.getfile(module), function_name)
        if problems:
            self.fail("; ".join(map(str, problems)))
        function = getattr(module, function_name)
        empty, many = inspect.Parameter.empty, (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        if all(one.default is not empty or one.kind in many for one in parameters):
            check_app(materialize_appdef(function, []))
