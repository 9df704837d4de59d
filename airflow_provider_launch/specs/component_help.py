"""Help of components: read from their docstrings, and formatted by argparse."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from airflow_provider_launch.util.docstrings import google_docstring


class TorchXArgumentHelpFormatter(argparse.HelpFormatter):
    """Ends the help of each argument with ` (required)` or ` (default: X)`."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or " "
        if action.required:
            return f"{text} (required)"
        return text if action.default is argparse.SUPPRESS else f"{text} (default: %(default)s)"


def get_fn_docstring(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a component, and the help of each of its parameters.

    A parameter that the docstring does not describe has a blank as its help.
    """
    description, documented = google_docstring(inspect.getdoc(fn) or "")
    parameters = {name: documented.get(name) or " " for name in inspect.signature(fn).parameters}
    name = getattr(fn, "__name__", "component")
    return description or f"{name} has no docstring; write one, and its first lines are shown here", parameters
