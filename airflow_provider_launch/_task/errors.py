"""Errors of the launcher, as Airflow understands them."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_launch.specs.errors import AppNotStartedError, AppStatusError, InvalidAppError


class FinalAppError(AirflowFailException, InvalidAppError):
    """The app, its options or the connection are wrong: the task ends without further tries."""


class final_errors:  # noqa: N801 - used like a function; a generator would restore the traceback
    """Let an `InvalidAppError`, which only a change of DAG or connection can mend, end the task without retries.

    The traceback of what the author of DAG or program has to mend begins here: where it was noticed does not help them.

    Args:
        task_id: named in the text, while the DAG is parsed: of an import error Airflow shows only lines of ours.
    """

    def __init__(self, task_id: str = "") -> None:
        self._task_id = task_id

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise what the task is to end with."""
        if isinstance(error, InvalidAppError) and not isinstance(error, FinalAppError):
            # The text states what, which and how to mend it.
            raise FinalAppError(f"task {self._task_id!r}: {error}" if self._task_id else str(error)) from None
        if isinstance(error, (FinalAppError, AppStatusError, AppNotStartedError)):
            raise error.with_traceback(None)
