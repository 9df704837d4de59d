"""What the kit asks of the engine itself, so that it need not believe the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

__all__ = ["Engine"]


class Engine:
    """The view of the engine that does not go through the scheduler under test.

    Each method answers None where it does not know; the test then believes the scheduler, or is skipped with a reason
    when there is nothing else to check. A backend overrides what its engine can answer.
    """

    def alive(self, app_id: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return how many processes or containers of the app run now."""
        return None

    def starts(self, app_id: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return how many attempts of replicas were ever started for the app."""
        return None

    def left(self, app_id: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return how many things the engine keeps of the app: containers, networks, records, files, and what else."""
        return None

    def requests(self) -> int | None:
        """Return how many requests the schedulers of `make_scheduler` have sent so far, counted at the wire."""
        return None

    def lose(self, app_id: str, role: str) -> bool | None:  # noqa: ARG002 - for subclasses
        """Remove what runs a role, with all that the engine knows of it, as somebody does who clears up; return True.

        The evidence of such an app stays.
        """
        return None

    def stop(self, app_id: str, role: str) -> bool | None:  # noqa: ARG002 - for subclasses
        """Stop what runs a role with TERM, as somebody does by hand and past the scheduler; return True.

        None: the engine keeps no trace of who has stopped it, so that exit code 0 then is a success for everybody.
        """
        return None

    def damaged(self, app_id: str) -> AbstractContextManager[None] | None:  # noqa: ARG002 - for subclasses
        """Damage what the engine keeps of an app that has ended, as its program or another user could, and restore it.

        None: nothing of it can be changed.
        """
        return None

    def forged(self, app_id: str) -> AbstractContextManager[None] | None:  # noqa: ARG002 - for subclasses
        """Put what carries the id of an app that was never launched, with nonsense in it, into the engine; remove it.

        None: only the scheduler can make such things.
        """
        return None

    def cut_off(self) -> AbstractContextManager[None] | None:
        """Make the engine unreachable for the schedulers of `make_scheduler` while the context lasts."""
        return None

    def clock(self, offset_s: float) -> AbstractContextManager[Callable[[float], None]] | None:  # noqa: ARG002 - the same
        """Shift the engine's clock, as its answers report it, while the context lasts.

        Its value is a function that lets the clock step by seconds; what was written before keeps its time.
        """
        return None

    def cut_streams(self) -> int | None:
        """End the connections by which logs are followed now, and return how many there were."""
        return None

    def stall_logs(self) -> AbstractContextManager[None] | None:
        """Let reads of logs hang, and nothing else, while the context lasts."""
        return None
