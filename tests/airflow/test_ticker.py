"""One timer for all triggers of an event loop."""

from __future__ import annotations

import asyncio
import contextvars

from airflow_provider_launch.triggers.hub import Ticker

PERIOD_S = 0.02


class Member:
    def __init__(self) -> None:
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1


async def until(condition) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(PERIOD_S)


def test_all_members_are_called_again_and_again_by_one_timer() -> None:
    ticker, members = Ticker(PERIOD_S), [Member() for _ in range(50)]

    async def main() -> int:
        loop = asyncio.get_running_loop()
        for member in members:
            ticker.add(member, loop)
        await until(lambda: min(member.ticks for member in members) >= 3)
        timers = sum(not handle.cancelled() for handle in loop._scheduled)
        for member in members:
            ticker.remove(member, loop)
        return timers

    assert asyncio.run(main()) == 1


def test_a_removed_member_is_not_called_and_the_last_ends_the_timer() -> None:
    ticker, first, second = Ticker(PERIOD_S), Member(), Member()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ticker.add(first, loop)
        ticker.add(second, loop)
        await until(lambda: first.ticks)
        ticker.remove(first, loop)
        seen, later = first.ticks, second.ticks
        await until(lambda: second.ticks > later + 2)
        assert first.ticks == seen
        ticker.remove(second, loop)
        ticker.remove(second, loop)
        assert not ticker._timers
        assert not ticker._runs, "a loop that has ended would be kept"
        # A later member gets a new timer.
        ticker.add(first, loop)
        await until(lambda: first.ticks > seen)
        ticker.remove(first, loop)

    asyncio.run(main())


def test_each_loop_has_its_own() -> None:
    """`dag.test()` makes a loop for each trigger; the next one must not need the loop of the last one."""
    ticker, first, second = Ticker(PERIOD_S), Member(), Member()

    async def main(member: Member) -> None:
        ticker.add(member, asyncio.get_running_loop())
        await until(lambda: member.ticks >= 2)

    asyncio.run(main(first))  # and it has not left
    asyncio.run(main(second))
    assert len(ticker._timers) == 1


def test_it_polls_in_the_context_of_none_of_its_members() -> None:
    """The log of a triggerer tells by the context whose line it is."""
    whose: contextvars.ContextVar[str] = contextvars.ContextVar("whose", default="nobody's")
    seen = []

    class Looks:
        def tick(self) -> None:
            seen.append(whose.get())

    async def main() -> None:
        ticker, member = Ticker(PERIOD_S), Looks()
        whose.set("the first one's")
        ticker.add(member, asyncio.get_running_loop())
        await until(lambda: len(seen) >= 3)
        ticker.remove(member, asyncio.get_running_loop())

    asyncio.run(main())
    assert set(seen) == {"nobody's"}
