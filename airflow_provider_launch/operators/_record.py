"""The record of which app a task has launched, and the decision what the next try does with the app.

Nothing here does I/O except `RecordStore`, which reads and writes one key of Airflow's task state store.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, Protocol

from airflow_provider_launch._task.places import Place, checked_places
from airflow_provider_launch.schedulers.ids import slug
from airflow_provider_launch.util.untrusted import clean_json

KEY = "launch"
KILLED = "killed"
_MOST_SECONDS = 1e12
_CHECKED_LATER = frozenset({"value", "since", "places"})

# Kubernetes allows 63 characters for `<app id>-<role>-<replica>`; the slug leaves room for the last two.
_SLUG_LENGTH = 28
_HASH_LENGTH = 10


def app_id_for(*, dag_id: str, run_id: str, run_start: str, task_id: str, map_index: int, attempt: int) -> str:
    """Return the id of an app: readable, and unique for each launch of each task instance.

    `attempt` counts the launches of the task instance from 0.
    Lower case letters, digits and `-`, starting with a letter, at most 39 characters: valid for every backend.
    The start of the run distinguishes two runs with the same `run_id` if the first one was deleted.
    """
    # The lengths distinguish ("a", "b|c") from ("a|b", "c").
    parts = (dag_id, run_id, run_start, task_id, str(map_index), str(attempt))
    text = "".join(f"{len(part)}:{part}|" for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return f"{_readable(dag_id, task_id)}-{base64.b32encode(digest).decode().lower()[:_HASH_LENGTH]}"


def _readable(dag_id: str, task_id: str) -> str:
    """Return both names, shortened to `_SLUG_LENGTH` together.

    Each name gets half of the length, and the characters that the other name does not need.
    """
    dag, task = slug(dag_id, _SLUG_LENGTH), slug(task_id, _SLUG_LENGTH)
    room = _SLUG_LENGTH - 1
    kept = task[: max(room - len(dag), room // 2)].rstrip("-")
    return f"{dag[: room - len(kept)].rstrip('-')}-{kept}"


@dataclass(frozen=True)
class Record:
    """One launch of a task: its app, its scheduler and its progress."""

    attempt: int
    app_id: str
    spec_hash: str
    identity: str
    """Identity of the scheduler at the launch; other schedulers do not know the app."""
    clear_number: int
    """`DagRun.clear_number` at the launch. If it has not changed, the next try is a retry and not a clear."""
    state: str
    """`intent` before the submit, `scheduled` after it, `closed` when no try may adopt the app."""
    handle: str = ""
    outcome: str = ""
    """How the app of a closed record ended. In an open record `KILLED`: the task was killed and its app may run."""
    max_tries: int = -1
    """`max_tries` of the task at the launch. A clear of a task that is not running raises it. -1: unknown."""
    retries: int = -1
    """`retries` in the DAG at the launch. A change of it also changes `max_tries`. -1: unknown."""
    value: dict[str, Any] | None = None
    """Return value of the task, saved before its succeeded app is removed."""

    since: float = 0.0
    """Epoch seconds of the first submission, from which `start_limit_s` counts. 0: unknown."""
    places: list[Place] | None = None
    """The locations of secrets in the app, from `_task.places`. None: unknown."""

    @property
    def is_open(self) -> bool:
        """Whether the next try must look up the app."""
        return self.state != "closed"

    @classmethod
    def from_json(cls, value: object) -> Record | None:
        """Return the stored record; None if it is not valid, because users can edit the store in the UI."""
        if not isinstance(value, dict):
            return None
        known = {item.name: value.get(item.name) for item in fields(cls) if item.name not in _CHECKED_LATER}
        known |= {name: value.get(name, -1) for name in ("max_tries", "retries")}
        texts = ("app_id", "spec_hash", "identity", "state", "handle", "outcome")
        numbers = ("attempt", "clear_number", "max_tries", "retries")
        if not all(isinstance(known[name], str) for name in texts):
            return None
        if not all(isinstance(known[name], int) and not isinstance(known[name], bool) for name in numbers):
            return None
        if known["state"] not in ("intent", "scheduled", "closed") or not known["app_id"]:
            return None
        since, places, value = value.get("since"), checked_places(value.get("places")), value.get("value")
        if not isinstance(since, (int, float)) or isinstance(since, bool) or not 0 <= since < _MOST_SECONDS:
            since = 0.0
        value = value if isinstance(value, dict) else None
        return cls(**known, value=value, since=float(since), places=places)  # type: ignore[arg-type]  # each was checked above


class NextStep(Enum):
    """The first action of a try."""

    LAUNCH = "launch the first app, or the next one after one that is over"
    RESUME = "find the app of the last try and continue with it"
    REPLACE = "cancel the previous app, then launch a new one"


def next_step(record: Record | None, clear_number: int, max_tries: int, retries: int) -> NextStep:
    """Return the first action of a try, given the record of an earlier try.

    Args:
        record: record of that try.
        clear_number: how often tasks of the run were cleared, this one or another.
        max_tries: the current `max_tries` of the task.
        retries: the current `retries` in the DAG.
    """
    if record is None:
        return NextStep.LAUNCH
    # `clear_number` counts the clears of all tasks of the run. This task was cleared if its try was killed, because it
    # was running, or if its limits changed, because it was not running. The app of a killed try may still run, because
    # its cancel may have failed.
    limits = (record.max_tries, record.retries)
    was_task_cleared = not record.is_open or record.outcome == KILLED or limits != (max_tries, retries)
    if record.clear_number != clear_number and was_task_cleared:
        return NextStep.REPLACE
    return NextStep.RESUME if record.is_open else NextStep.LAUNCH


class StateStore(Protocol):
    """The part of `context["task_state_store"]` that is used."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of the key."""

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        """Keep the value across tries and clears for `retention`, or for the default time of Airflow."""


class RecordStore:
    """Stores the record of this task instance. Without a store it is lost with the process."""

    def __init__(self, store: StateStore | None) -> None:
        self._store = store

    @property
    def is_persistent(self) -> bool:
        """Whether another try can load what is saved."""
        return self._store is not None

    def load(self) -> Record | None:
        """Return the record of the last try, None if there is none."""
        return None if self._store is None else Record.from_json(self._store.get(KEY, None))

    def save(self, record: Record) -> None:
        """Keep the record for the next try."""
        if self._store is not None:
            from airflow.sdk.execution_time.context import NEVER_EXPIRE

            # A task may run for longer than Airflow keeps such values, and a later clear must find the app.
            # The value is deleted with the run.
            self._store.set(KEY, clean_json(asdict(record)), retention=NEVER_EXPIRE if record.is_open else None)
