"""A scheduler plug-in as a third party would ship it: found by its entry point, its engine named by a parameter."""

from __future__ import annotations

from typing import Any

from tests.support.fake_scheduler import FakeEngine, FakeScheduler

ENGINES: dict[str, FakeEngine] = {}
OPENED: list[FakeScheduler] = []
"""What the code under test has opened in this test; it has to close all of them."""


class WithoutAdopt(FakeScheduler):
    capabilities = frozenset()


def create_scheduler(session_name: str, engine: str = "", adopts: bool = True, **_: Any) -> FakeScheduler:
    kind = FakeScheduler if adopts else WithoutAdopt
    scheduler = kind(session_name, ENGINES[engine])
    OPENED.append(scheduler)
    return scheduler
