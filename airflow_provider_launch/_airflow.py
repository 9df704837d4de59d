"""The versions of Airflow that this package supports, and everything that differs between them.

This module alone knows the differences: others import a name from here, and never ask for a version.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    # Each alias lets type checkers take the name as a part of this module.
    from airflow.sdk import BaseHook as BaseHook
    from airflow.sdk import conf as conf
    from airflow.sdk.exceptions import AirflowFailException as AirflowFailException
    from airflow.sdk.exceptions import AirflowNotFoundException as AirflowNotFoundException
    from airflow.sdk.exceptions import AirflowSensorTimeout as AirflowSensorTimeout
    from airflow.sdk.exceptions import AirflowSkipException as AirflowSkipException
    from airflow.sdk.exceptions import AirflowTaskTimeout as AirflowTaskTimeout
    from airflow.sdk.exceptions import TaskDeferred as TaskDeferred
    from airflow.sdk.log import mask_secret as mask_secret
    from airflow.sdk.log import redact as redact  # type: ignore[attr-defined] # not in its list
    from airflow.sdk.observability.stats import Stats as Stats
    from airflow.sdk.plugins_manager import AirflowPlugin as AirflowPlugin

T = TypeVar("T")

LOWEST = (3, 1)
"""The lowest version of Airflow that is supported."""
REFUSED_BELOW = (3, 0)
"""With older versions nothing works; from here to `LOWEST` the package runs, and nothing is promised."""


def require_airflow() -> None:
    """Refuse an old Airflow, before a name that it lacks is imported.

    Raises:
        ImportError: the text has the installed version, the required version, and the fix.
    """
    installed = _installed()
    if installed is None:
        return
    found = tuple(int(number) for number in re.findall(r"\d+", installed)[:2])
    if found < REFUSED_BELOW:
        needed = ".".join(map(str, LOWEST))
        raise ImportError(
            f"airflow-provider-launch needs Airflow {needed} or newer, but Airflow {installed} is installed: upgrade"
            " Airflow first, or uninstall airflow-provider-launch"
        )


@functools.cache
def _installed() -> str | None:
    """Return the version of Airflow; None if it is not installed, or only its task SDK is."""
    # The first name is for Airflow 3; the second is for Airflow 2, or only the meta package of Airflow 3.
    for name in ("apache-airflow-core", "apache-airflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


# ---- names that moved --------------------------------------------------------------------------------------------

_EXCEPTIONS = ("airflow.sdk.exceptions", "airflow.exceptions")
_MASKS = ("airflow.sdk.log", "airflow.sdk.execution_time.secrets_masker")
MODULES: Mapping[str, tuple[str, ...]] = {
    "BaseHook": ("airflow.sdk", "airflow.hooks.base"),
    "conf": ("airflow.sdk", "airflow.configuration"),
    "mask_secret": _MASKS,
    "redact": _MASKS,
    "AirflowFailException": _EXCEPTIONS,
    "AirflowNotFoundException": _EXCEPTIONS,
    "AirflowSensorTimeout": _EXCEPTIONS,
    "AirflowSkipException": _EXCEPTIONS,
    "AirflowTaskTimeout": _EXCEPTIONS,
    "TaskDeferred": _EXCEPTIONS,
    "Stats": ("airflow.sdk.observability.stats", "airflow.stats"),
    "AirflowPlugin": ("airflow.sdk.plugins_manager", "airflow.plugins_manager"),
}
"""Name to the modules that may have it: the first one is that of the newest Airflow."""


def __getattr__(name: str) -> Any:
    # Only when a name is needed, because each import of this module would pay for all of them.
    for module in MODULES.get(name, ()):
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        globals()[name] = found
        return found
    if name in MODULES:
        raise ImportError(f"this Airflow has no {name} in {' or '.join(MODULES[name])}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def arguments_for(
    operator: Any, function: Callable[..., Any], args: Any, known: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return those of the known values that a decorated function takes by name.

    Args:
        operator: the decorated operator.
        function: the function of the user.
        args: its arguments by position.
        known: the context, and its arguments by name.
    """
    if hasattr(operator, "determine_kwargs"):
        return cast("Mapping[str, Any]", operator.determine_kwargs(known))
    # Before Airflow 3.2.
    helpers: Any = importlib.import_module("airflow.utils.operator_helpers")
    return cast("Mapping[str, Any]", helpers.determine_kwargs(function, args, known))


def dag_bag(path: str | None) -> Any:
    """Return the DAGs of a file or folder, as an object with `dags` and `import_errors`. None: the DAGs folder."""
    for module in ("airflow.dag_processing.dagbag", "airflow.models.dagbag"):  # the second one before Airflow 3.2
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(module).DagBag(path)
    raise ImportError("this Airflow has no DagBag")


@contextlib.contextmanager
def rendering(operator: Any, *, native: bool) -> Iterator[None]:
    """Let the operator render texts to Python objects, or to text, independently of its DAG."""
    if hasattr(operator, "render_template_as_native_obj"):
        before = operator.render_template_as_native_obj
        operator.render_template_as_native_obj = native
        try:
            yield
        finally:
            operator.render_template_as_native_obj = before
        return
    # Before Airflow 3.2 only a DAG has the switch.
    plain, dag = operator._render, SimpleNamespace(render_template_as_native_obj=native)  # noqa: SLF001
    operator.__dict__["_render"] = lambda template, context, _dag=None: plain(template, context, dag=dag)
    try:
        yield
    finally:
        del operator.__dict__["_render"]


# ---- requests of triggers to Airflow -----------------------------------------------------------------------------

_THREADS = 8
"""Requests of threads of a triggerer that Airflow answers at a time."""
_loop: asyncio.AbstractEventLoop | None = None
_on_loop = threading.local()


def enter_triggerer() -> None:
    """Have requests of other threads of this process go through the running event loop; may be repeated."""
    global _loop  # noqa: PLW0603 - a triggerer has one event loop
    _loop = asyncio.get_running_loop()


def ask(call: Callable[[], T]) -> T:
    """Return the result of a call that sends requests to Airflow; for any thread except that of the event loop.

    The triggerer of Airflow 3.1 ends, with all its triggers, if another thread than one of asgiref sends a request.
    """
    loop = _loop
    if loop is None or not loop.is_running() or getattr(_on_loop, "is_here", False) or not _needs_loop():
        return call()
    return asyncio.run_coroutine_threadsafe(_through_loop(call), loop).result()


async def ask_from_loop(call: Callable[[], T]) -> T:
    """Return the result of a call that sends requests to Airflow; the event loop continues meanwhile.

    The request is completed even if the caller is cancelled, because an unread answer would end the
    triggerer of Airflow 3.1.
    """
    return await asyncio.shield(asyncio.ensure_future(_through_loop(call)))


async def _through_loop(call: Callable[[], T]) -> T:
    from asgiref.sync import sync_to_async

    def work() -> T:
        _on_loop.is_here = True
        try:
            return call()
        finally:
            _on_loop.is_here = False

    return await sync_to_async(work, thread_sensitive=False, executor=_executor())()


@functools.cache
def _executor() -> Any:
    """Return own threads: those of the event loop are few, and may wait for an answer that needs one of them."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_THREADS, thread_name_prefix="launch-airflow")


def _needs_loop() -> bool:
    """Return whether this process is a triggerer that takes requests only on the threads of asgiref: Airflow 3.1."""
    from airflow.sdk.execution_time import task_runner

    comms = getattr(task_runner, "SUPERVISOR_COMMS", None)
    return hasattr(comms, "asend") and hasattr(comms, "_async_writer") and not hasattr(comms, "start_reader")


def get_xcom(**where: Any) -> Awaitable[Any]:
    """Return the value of an XCom, for triggers; the arguments are those of `BaseXCom.get_one`."""
    from airflow.sdk.bases.xcom import BaseXCom

    if hasattr(BaseXCom, "aget_one"):
        return cast("Awaitable[Any]", BaseXCom.aget_one(**where))
    return ask_from_loop(lambda: BaseXCom.get_one(**where))  # before Airflow 3.3


def set_xcom(**where: Any) -> Awaitable[None]:
    """Write an XCom, for triggers; the arguments are those of `BaseXCom.set`."""
    from airflow.sdk.bases.xcom import BaseXCom

    if hasattr(BaseXCom, "aset"):
        return cast("Awaitable[None]", BaseXCom.aset(**where))
    return ask_from_loop(lambda: BaseXCom.set(**where))  # before Airflow 3.3


async def set_xcom_at_shutdown(*, value: str, **where: Any) -> None:
    """Write an XCom when the triggerer ends: the request is on its way after the first step.

    Before Airflow 3.3 a request through a thread would be too late, and its answer does not arrive.
    """
    from airflow.sdk.bases.xcom import BaseXCom

    if hasattr(BaseXCom, "aset"):
        await BaseXCom.aset(value=value, **where)
        return
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import SetXCom, _RequestFrame

    comms: Any = task_runner.SUPERVISOR_COMMS
    frame = _RequestFrame(id=next(comms.id_counter), body=SetXCom(value=value, **where).model_dump())
    comms._async_writer.write(frame.as_bytes())  # noqa: SLF001 - all public ways wait for the answer


# ---- the end of a trigger ----------------------------------------------------------------------------------------


def is_ended_by_user(error: asyncio.CancelledError) -> bool:
    """Return whether a trigger is cancelled because its task no longer waits for it, as far as this Airflow reports it.

    Before Airflow 3.3 this includes a trigger that moves to another triggerer, so the state of the task decides.
    """
    if (message := _message_of_user()) is not None:
        return bool(error.args) and error.args[0] == message
    return not _is_shutting_down()


def is_left_to_another(error: asyncio.CancelledError) -> bool:
    """Return whether another triggerer may run the cancelled trigger again."""
    return _message_of_user() is None or not is_ended_by_user(error)


def _message_of_user() -> str | None:
    """Return the message with which Airflow cancels the triggers of ended tasks; None before Airflow 3.3."""
    try:
        from airflow.jobs.triggerer_job_runner import _USER_ACTION_CANCEL_MSG
    except ImportError:
        return None
    return str(_USER_ACTION_CANCEL_MSG)


def _is_shutting_down() -> bool:
    """Return whether the triggerer ends: then its main task has ended, and all others are cancelled."""
    names = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    return "TriggerRunner.arun" not in names
