"""Which test of the contract notices which defect."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.schedulers.local.options import LocalConnection
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler

__all__ = ["DEFECTS", "BrokenLocal", "caught_by", "load_all"]

DEFECTS: dict[type[Scheduler[Any]], tuple[str, ...]] = {}
"""Broken scheduler -> names of the tests that fail for it."""

_S = TypeVar("_S", bound=type[Scheduler[Any]])


def caught_by(*tests: str) -> Callable[[_S], _S]:
    """Name the tests that must fail for the scheduler."""

    def register(scheduler: _S) -> _S:
        DEFECTS[scheduler] = tests
        return scheduler

    return register


def load_all() -> dict[type[Scheduler[Any]], tuple[str, ...]]:
    """Return the defects of all modules beside this one."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name != "suite":
            importlib.import_module(f"{package}.{module.name}")
    return DEFECTS


class BrokenLocal(LocalScheduler):
    """Base of defects that need what the threads scheduler does not offer. Its class is its factory."""

    def __init__(self, session_name: str, *, root: str, **_: Any) -> None:
        super().__init__(session_name, LocalConnection(root=root))
