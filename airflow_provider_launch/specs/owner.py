"""The Airflow task that an app belongs to, as each backend stores it with the app."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_provider_launch.util.untrusted import UntrustedError, parse_int, parse_json

OWNER = "airflow"
"""The key in `AppDef.metadata` under which the operator stores the task."""
TRY = "try_number"
"""Key of the try that launched the app. A later try may adopt the app, so it is not part of the request."""
_MAX_TEXT = 64 * 1024
_MAX_ID = 250
"""Maximum characters of an id in Airflow; a longer text is not an id, and would make queries too large."""
_MAX_INDEX = 2**31 - 1
"""Maximum integer in a column of Airflow's database, which refuses a query with a larger one."""
DEPLOYMENT = "deployment"
"""Key of the id of the Airflow deployment; other deployments have tasks of the same names."""
POLICY = "policy"
"""Key of the fate of the app when its task is over: "cancel", or `LEAVE`."""
LEAVE = "leave"
COUNTS = "counts"
"""Key of Airflow's counts at the launch, which an Airflow without a task state store needs in the next try."""
NOT_ASKED_FOR = frozenset({TRY, DEPLOYMENT, POLICY, COUNTS})
"""Fields that may differ between tries, or between versions of this package, for the same app."""
_FIELDS = ("dag_id", "run_id", "task_id", "map_index", TRY, DEPLOYMENT, POLICY, COUNTS)


class TaskKey(NamedTuple):
    """One task instance of Airflow, without its try number."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @classmethod
    def of(cls, ti: Any) -> TaskKey:
        """Return the key of a task instance of a worker or a triggerer."""
        return cls(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index)

    @property
    def can_be_queried(self) -> bool:
        """Whether each database can search for it: PostgreSQL refuses NUL, and no database takes half of a surrogate.

        Airflow repeats a refused request five times, and the triggers of the process wait for that.
        """
        return (self.dag_id + self.run_id + self.task_id).isprintable()


def owner_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the known fields of the task, including `deployment` and `policy`."""
    found = metadata.get(OWNER)
    if not isinstance(found, Mapping):
        return {}
    return {name: str(found[name]) for name in _FIELDS if name in found}


def owner_text(metadata: Mapping[str, Any]) -> str:
    """Return `owner_of` as one line of JSON; empty for an app without a task."""
    owner = owner_of(metadata)
    return json.dumps(owner, separators=(",", ":")) if owner else ""


def owner_from(text: str | None) -> dict[str, str]:
    """Return the fields from `owner_text`; empty if the text is not valid: any user can write a label."""
    try:
        found = parse_json(text or "{}", _MAX_TEXT)
    except UntrustedError:
        return {}
    return owner_of({OWNER: found})


def task_of(owner: Mapping[str, str]) -> TaskKey | None:
    """Return the task instance of an owner; None if the fields are not valid: any user can write a label."""
    dag_id, run_id, task_id = (owner.get(name, "") for name in ("dag_id", "run_id", "task_id"))
    if not all(0 < len(name) <= _MAX_ID for name in (dag_id, run_id, task_id)):
        return None
    try:
        return TaskKey(dag_id, run_id, task_id, parse_int(owner.get("map_index", "-1"), -1, _MAX_INDEX))
    except UntrustedError:
        return None
