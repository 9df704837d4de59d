"""Errors of the launcher, as Airflow understands them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_launch.specs.errors import InvalidAppError

__all__ = ["FinalAppError", "final_errors"]


class FinalAppError(AirflowFailException, InvalidAppError):
    """The app, its options or the connection are wrong: the task ends without further tries."""


@contextlib.contextmanager
def final_errors(task_id: str = "") -> Iterator[None]:
    """Let an `InvalidAppError`, which only a change of DAG or connection can mend, end the task without retries.

    Args:
        task_id: named in the text, while the DAG is parsed: of an import error Airflow shows only lines of ours.
    """
    try:
        yield
    except FinalAppError:
        raise
    except InvalidAppError as error:
        # the text states what, which and how to mend it; where we noticed it does not help the author of the DAG.
        raise FinalAppError(f"task {task_id!r}: {error}" if task_id else str(error)) from None
