"""Private parts of Airflow's task and trigger runners that the tests need, where its versions differ."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any
from unittest import mock

from airflow.sdk.execution_time import supervisor

__all__ = [
    "HAS_CONN_FIELDS",
    "HAS_ON_KILL",
    "HAS_STORE",
    "HAS_TERMINATION",
    "USER_ACTION",
    "cancel_trigger",
    "deserialize",
    "event_message",
    "events_of",
    "import_string",
    "run_task_with",
    "serialize",
]


def _first(name: str, *modules: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


serialize = _first("serialize", "airflow.sdk.serde")
if serialize is None:
    # How Airflow 3.1 stores the arguments with which a deferred task resumes.
    serialize = _first("BaseSerialization", "airflow.serialization.serialized_objects").serialize
deserialize = _first("deserialize", "airflow.sdk.serde", "airflow.serialization.serde")
import_string = _first("import_string", "airflow.sdk._shared.module_loading", "airflow.utils.module_loading")

HAS_STORE = _first("NEVER_EXPIRE", "airflow.sdk.execution_time.context") is not None
"""Whether tasks have a state store: Airflow 3.3."""
HAS_ON_KILL = HAS_STORE
"""Whether Airflow says why it cancels a trigger, and calls its `on_kill`: the same version."""
HAS_TERMINATION = HAS_STORE
"""Whether the supervisor of a task passes on SIGTERM: the same version."""
USER_ACTION = "__airflow_user_action__"
"""How Airflow's runner of triggers tells a user's act; checked where it is used."""


HAS_CONN_FIELDS = _first("conf", "airflow.sdk") is not None
"""Whether forms of connections have fields of their type: Airflow 3.2 and newer, like `airflow.sdk.conf`."""


def run_task_with(client: Any, instance: Any, task: Any) -> Any:
    """Run the task through Airflow's task runner, which asks this client."""
    if HAS_STORE:
        return supervisor.run_task_in_process(instance, task, client=client)
    with mock.patch.object(supervisor.InProcessTestSupervisor, "_api_client", staticmethod(lambda _dag=None: client)):
        return supervisor.run_task_in_process(instance, task)


def event_message(event: Any) -> Any:
    """Return the message with which the runner of triggers sends an event to its supervisor."""
    from airflow.jobs import triggerer_job_runner as triggerer

    entry = triggerer.TriggerEventEntry(1, event, None) if HAS_ON_KILL else (1, event)
    return triggerer.messages.TriggerStateChanges(events=[entry])


def events_of(runner: Any, trigger_id: int | None = None) -> list[Any]:
    """Return the events that the runner of triggers has collected, or those of one trigger."""
    entries = [(one.trigger_id, one.event) if HAS_ON_KILL else one for one in runner.events]
    return [event for number, event in entries if trigger_id in (None, number)]


class TriggerRunner:
    """Before Airflow 3.3 only its main task shows that a triggerer does not end."""

    async def arun(self) -> None:
        await asyncio.sleep(3600)


async def cancel_trigger(task: asyncio.Task[Any], message: str | None) -> None:
    """Cancel a trigger as the runner does for a user (`USER_ACTION`), or at its end (None)."""
    if not HAS_ON_KILL and message == USER_ACTION:
        main = asyncio.ensure_future(TriggerRunner().arun())
        task.add_done_callback(lambda _: main.cancel())
        await asyncio.sleep(0)
    task.cancel(message)
