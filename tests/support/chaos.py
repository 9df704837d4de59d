"""Observers of apps that stall or die at any request, each replaced by another."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from airflow_provider_launch.schedulers.api import Scheduler
from airflow_provider_launch.specs import AppState, is_terminal


class _Killed(BaseException):
    """The observer's process has died."""


class Chaos:
    """Delays the requests of one observer, or makes one its last: before it is sent, or before its answer is read.

    Args:
        dice: decides.
        fatal: whether an observer may die at a request of this method.
        stall_s: the longest delay.
    """

    def __init__(self, dice: random.Random, fatal: Callable[[str], bool], stall_s: float) -> None:
        self._dice = dice
        self._fatal = fatal
        self._stall_s = stall_s
        self.is_over = False

    def around(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that sends requests like `send`, which gets the method first."""

        def request(method: str, *args: Any, **how: Any) -> Any:
            if self._dice.random() < 0.15 and not self.is_over:
                time.sleep(self._dice.random() * self._stall_s)
            doomed = self._fatal(method) and self._dice.random() < 0.3 and not self.is_over
            if doomed and self._dice.random() < 0.5:
                raise _Killed
            answer = send(method, *args, **how)
            if doomed:
                answer.close()
                raise _Killed
            return answer

        return request


class Observers:
    """Three threads that poll apps until all have ended; one that dies is replaced.

    Args:
        make: makes the scheduler of an observer, whose requests go through the chaos.
        app_ids: of the apps.
        seed: of the dice.
        fatal, stall_s: as for `Chaos`.
        chaos_s: seconds after which the observers are disturbed no more, so that the test ends.
        limit_s: seconds after which they give up.
        pause_s: the longest pause between two polls.
    """

    def __init__(
        self,
        make: Callable[[Chaos], Scheduler[Any]],
        app_ids: Iterable[str],
        seed: int,
        *,
        fatal: Callable[[str], bool],
        stall_s: float,
        chaos_s: float,
        limit_s: float,
        pause_s: float,
    ) -> None:
        self.app_ids = [*app_ids]
        self.seen: list[dict[str, list[AppState]]] = []
        """For each observer: app to its states, in order."""
        self.deaths = 0
        self._make, self._fatal, self._stall_s = make, fatal, stall_s
        self._chaos_s, self._limit_s, self._pause_s = chaos_s, limit_s, pause_s
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(seed + n),)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, dice: random.Random) -> None:
        seen: dict[str, list[AppState]] = {app_id: [] for app_id in self.app_ids}
        self.seen.append(seen)
        while self._age_s() < self._limit_s:
            chaos = Chaos(dice, self._fatal, self._stall_s)
            scheduler = self._make(chaos)
            with contextlib.suppress(_Killed), contextlib.closing(scheduler):
                while self._age_s() < self._limit_s:
                    chaos.is_over = self._age_s() > self._chaos_s
                    if self._look(scheduler, seen):
                        return
                    time.sleep(dice.random() * self._pause_s)
            self.deaths += 1

    def _age_s(self) -> float:
        return time.monotonic() - self._began

    def _look(self, scheduler: Scheduler[Any], seen: dict[str, list[AppState]]) -> bool:
        found = scheduler.describe_many(self.app_ids)
        for app_id, response in found.items():
            assert response is not None
            seen[app_id].append(response.state)
        return all(response and is_terminal(response.state) for response in found.values())

    def ends(self) -> list[dict[str, AppState]]:
        """Wait for all observers; return for each the end of each app, which it must not have taken back."""
        for thread in self._threads:
            thread.join()
        return [{app_id: _end(states) for app_id, states in seen.items()} for seen in self.seen]


def _end(states: list[AppState]) -> AppState:
    first = next((n for n, state in enumerate(states) if is_terminal(state)), len(states))
    assert len({*states[first:]}) == 1, f"there is no end, or it was taken back: {states}"
    return states[-1]
