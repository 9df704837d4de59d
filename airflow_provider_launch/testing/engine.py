"""Direct access to the engine, so that the tests can verify the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

__all__ = ["Engine"]


class Engine:
    """Reads and disturbs the engine without the scheduler under test.

    A method returns None if the engine cannot answer. The test then trusts the scheduler, or is skipped with a reason.
    A backend overrides the methods that its engine supports.
    """

    def alive(self, app_id: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return the number of running processes or containers of the app."""
        return None

    def starts(self, app_id: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return the number of replica attempts ever started for the app."""
        return None

    def left(self, app_id: str) -> int | None:  # noqa: ARG002 - for subclasses
        """Return the number of objects of the app in the engine: containers, networks, records, files and others."""
        return None

    def requests(self) -> int | None:
        """Return the number of requests sent by the schedulers of `make_scheduler`, counted on the network."""
        return None

    def lose(self, app_id: str, role: str) -> bool | None:  # noqa: ARG002 - for subclasses
        """Remove the running objects of a role and their history, as a manual clean-up does; return True.

        The record of the app stays.
        """
        return None

    def give_up(self, app_id: str, role: str) -> bool | None:  # noqa: ARG002 - for subclasses
        """Let the engine lose the program of replica 0 of a role without ending it; return True.

        For example, kill the daemon of its node, or its supervisor. None if the engine always notices the end of a
        program.
        """
        return None

    def stop(self, app_id: str, role: str) -> bool | None:  # noqa: ARG002 - for subclasses
        """Stop a role with TERM by hand, without the scheduler; return True.

        None: the engine does not record outside stops, so exit code 0 is a success there.
        """
        return None

    def damaged(self, app_id: str) -> AbstractContextManager[None] | None:  # noqa: ARG002 - for subclasses
        """Damage the record of an ended app, as its program or another user could, and restore it.

        None: the record cannot be changed.
        """
        return None

    def inflated(self, app_id: str) -> AbstractContextManager[None] | None:  # noqa: ARG002 - for subclasses
        """Write into the record of an ended app that each of its roles has a billion replicas, and restore it.

        None: the record cannot be changed.
        """
        return None

    def forged(self, app_id: str) -> AbstractContextManager[None] | None:  # noqa: ARG002 - for subclasses
        """Create, and then remove, an invalid object with the id of an app that was never launched.

        None: only the scheduler can create such objects.
        """
        return None

    def cut_off(self) -> AbstractContextManager[None] | None:
        """Make the engine unreachable for the schedulers of `make_scheduler` inside the context."""
        return None

    def clock(self, offset_s: float) -> AbstractContextManager[Callable[[float], None]] | None:  # noqa: ARG002 - the same
        """Shift the clock of the engine, as seen in its answers, inside the context.

        The context yields a function that steps the clock by seconds; earlier lines keep their times.
        """
        return None

    def cut_streams(self) -> int | None:
        """Close the open log streams, and return their number."""
        return None

    def stall_logs(self) -> AbstractContextManager[None] | None:
        """Make log reads hang inside the context; other requests work."""
        return None
