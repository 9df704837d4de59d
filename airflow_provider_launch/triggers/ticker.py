"""One timer of an event loop for all members that check something now and then."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Protocol

log = logging.getLogger(__name__)


class Member(Protocol):
    """A member that checks something."""

    def tick(self) -> None:
        """Check; called on the event loop, so it must not block."""


class Ticker:
    """Calls its members every few seconds; to be used on the thread of their event loop.

    A timer for each would be a quarter of a kilobyte in each of a thousand triggers.

    Args:
        period_s: seconds from one check to the next.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._members: dict[asyncio.AbstractEventLoop, set[Member]] = {}
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}

    def add(self, member: Member, loop: asyncio.AbstractEventLoop) -> None:
        """Call it from now on."""
        for ended in [other for other in self._members if other.is_closed()]:
            del self._members[ended], self._timers[ended]
        self._members.setdefault(loop, set()).add(member)
        if loop not in self._timers:
            self._start(loop)

    def remove(self, member: Member, loop: asyncio.AbstractEventLoop) -> None:
        """Call it no more; the last one to leave ends the timer."""
        members = self._members.get(loop, set())
        members.discard(member)
        if not members and loop in self._timers:
            self._timers.pop(loop).cancel()
            del self._members[loop]

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        # Not in the context of one member, which shows whose log is meant.
        self._timers[loop] = contextvars.Context().run(loop.call_later, self._period_s, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._start(loop)
        for member in list(self._members[loop]):
            try:
                member.tick()
            except Exception:
                # One that fails must not stop the checks of the others.
                log.exception("the check of a trigger failed")
