"""The contract of all schedulers, as one test class."""

from __future__ import annotations

import inspect
from typing import Any

from airflow_provider_launch.testing._costs import CostTests
from airflow_provider_launch.testing._cursors import CursorTests
from airflow_provider_launch.testing._distributed import DistributedTests
from airflow_provider_launch.testing._ending import EndingTests
from airflow_provider_launch.testing._following import FollowTests
from airflow_provider_launch.testing._hostile import HostileTests
from airflow_provider_launch.testing._identity import IdentityTests
from airflow_provider_launch.testing._logs import LogTests
from airflow_provider_launch.testing._outages import LossTests, OutageTests
from airflow_provider_launch.testing._refusals import DryRunTests, RefusalTests
from airflow_provider_launch.testing._retries import RetryTests
from airflow_provider_launch.testing._running import RunningTests
from airflow_provider_launch.testing._starting import StartTests
from airflow_provider_launch.testing._values import ValueTests
from airflow_provider_launch.testing._workspaces import WorkspaceTests

__all__ = ["SchedulerContract"]

_DECLARED = frozenset(
    {
        "factory",
        "capabilities",
        "timeout_s",
        "lag_s",
        "drain_s",
        "endless",
        "many",
        "requests_per_describe",
        "apps_at_once",
        "option_names",
        "xfail",
        "params",
        "unreachable_params",
        "image",
        "program_with_a_space",
        "resource",
        "cfg",
        "workspace_cfg",
        "never_starts",
        "engine",
        "create",
    }
)
"""Attributes and fixtures that a backend declares. All others belong to the contract."""

_OPTIONS = {"time_limit_s", "grace_s", "copy_env", "workspace_max_mb"}
"""Options that the tests know by name."""


def _is_fixture(value: object) -> bool:
    # A separate class since pytest 8.4, a marked function before.
    return type(value).__name__ == "FixtureFunctionDefinition" or hasattr(value, "_pytestfixturefunction")


class SchedulerContract(
    # pytest runs the tests of the last base first, so `-x` shows the first missing feature, from simple to hard.
    WorkspaceTests,
    CostTests,
    HostileTests,
    LossTests,
    OutageTests,
    FollowTests,
    IdentityTests,
    CursorTests,
    LogTests,
    RetryTests,
    EndingTests,
    StartTests,
    DistributedTests,
    ValueTests,
    RunningTests,
    DryRunTests,
    RefusalTests,
):
    """All tests of the contract. Subclass it, name the subclass `Test...`, and give it fixtures.

    Tests and their helpers, such as `needs`, cannot be overridden, because an amended contract promises nothing. If the
    backend fails a test, name the test in `xfail` with the reason.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tests = [name for name in dir(SchedulerContract) if name.startswith("test_")]
        kept = [name for name in dir(SchedulerContract) if not name.startswith("__") and name not in _DECLARED]
        # Static, because a fixture returns a new object at each access.
        changed = [
            name
            for name in kept
            if inspect.getattr_static(cls, name) is not inspect.getattr_static(SchedulerContract, name)
        ]
        if changed:
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(changed)}; tests of the contract and their helpers cannot "
                f"be changed: name the test in `xfail` with the reason, or choose another name"
            )
        for name in sorted(_DECLARED):
            is_fixture = _is_fixture(inspect.getattr_static(SchedulerContract, name, None))
            if _is_fixture(inspect.getattr_static(cls, name, None)) != is_fixture:
                kind = (
                    "a fixture, so decorate a method with `pytest.fixture`"
                    if is_fixture
                    else "a plain attribute, not a fixture"
                )
                raise TypeError(f"{cls.__name__}.{name} must be {kind}; see the page on testing a scheduler")
        if unknown := sorted(set(cls.option_names) - _OPTIONS):
            raise TypeError(
                f"{cls.__name__}.option_names names {', '.join(unknown)}; the tests know {', '.join(sorted(_OPTIONS))}"
            )
        for name, reason in cls.xfail.items():
            if name.partition("[")[0] not in tests:
                raise TypeError(f"{cls.__name__}.xfail names {name!r}, which is not a test of the contract")
            if not reason.strip():
                raise TypeError(f"{cls.__name__}.xfail has no reason for {name!r}; add one")
