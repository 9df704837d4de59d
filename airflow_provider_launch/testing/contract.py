"""The contract that every scheduler keeps, as one class of tests."""

from __future__ import annotations

from typing import Any

from airflow_provider_launch.testing._costs import CostTests
from airflow_provider_launch.testing._cursors import CursorTests
from airflow_provider_launch.testing._ending import EndingTests
from airflow_provider_launch.testing._following import FollowTests
from airflow_provider_launch.testing._identity import IdentityTests
from airflow_provider_launch.testing._logs import LogTests
from airflow_provider_launch.testing._outages import OutageTests
from airflow_provider_launch.testing._refusals import RefusalTests
from airflow_provider_launch.testing._retries import RetryTests
from airflow_provider_launch.testing._running import RunningTests

__all__ = ["SchedulerContract"]


class SchedulerContract(
    RunningTests,
    EndingTests,
    RetryTests,
    IdentityTests,
    RefusalTests,
    LogTests,
    CursorTests,
    FollowTests,
    OutageTests,
    CostTests,
):
    """All tests of the contract. Subclass it, name the subclass `Test...`, and give it fixtures.

    A test cannot be overridden, since a contract that everybody amends promises nothing. A test that the backend
    fails is named in `xfail` with the reason.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tests = [name for name in dir(SchedulerContract) if name.startswith("test_")]
        changed = [name for name in tests if getattr(cls, name, None) is not getattr(SchedulerContract, name)]
        if changed:
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(changed)}; a test of the contract cannot be changed: "
                f"name it in `xfail` with the reason, or add a test under another name"
            )
        for name, reason in cls.xfail.items():
            if name.partition("[")[0] not in tests:
                raise TypeError(f"{cls.__name__}.xfail names {name!r}, which is no test of the contract")
            if not reason.strip():
                raise TypeError(f"{cls.__name__}.xfail gives no reason for {name!r}")
