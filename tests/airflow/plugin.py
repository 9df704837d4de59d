"""A scheduler plug-in as a third party would ship it: found by its entry point, its engine named by a parameter."""

from __future__ import annotations

from typing import Any

from tests.support.fake_scheduler import FakeEngine, FakeScheduler

ENGINES: dict[str, FakeEngine] = {}


class WithoutAdopt(FakeScheduler):
    capabilities = frozenset()


def create_scheduler(session_name: str, engine: str = "", adopts: bool = True, **_: Any) -> FakeScheduler:
    kind = FakeScheduler if adopts else WithoutAdopt
    return kind(session_name, ENGINES[engine])
