"""`LaunchHook`: turns an Airflow connection into a runner."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch._airflow import AirflowNotFoundException, BaseHook
from airflow_provider_launch.connections.airflow_types import AIRFLOW_TYPES
from airflow_provider_launch.connections.definition import NEED_NO_DEFINITION, UNUSED_FIELDS, Definition
from airflow_provider_launch.connections.extras import LaunchOptions, plugin_types
from airflow_provider_launch.connections.launch import LaunchConnection
from airflow_provider_launch.connections.probes import probe
from airflow_provider_launch.hooks.connections import deployment, find_connection
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_launch.schedulers.api import Scheduler

__all__ = ["DEFAULT_CONN_ID", "HOOKS", "BuiltinLaunchHook", "LaunchHook"]

DEFAULT_CONN_ID = "launch_local_default"
"""The connection of a task without one: local processes with default options."""

HOOKS: Mapping[str, str] = {
    "launch": "airflow_provider_launch.hooks.launch:LaunchHook",
    **{info.connection_type: info.hook for info in BACKENDS.values()},
}
"""Connection type to hook class, as text, so that only the needed hook is imported."""


class LaunchHook(BaseHook):
    """The hook of a scheduler, which an Airflow connection describes.

    Connections of type `launch` are for schedulers of plug-ins: the extra `scheduler` names one, `params` are the
    keyword arguments of its factory, `cfg` its default options. Built-in schedulers have own types and subclasses.

    Args:
        launch_conn_id: the connection; also the session name in the handles of its apps.
    """

    conn_name_attr = "launch_conn_id"
    default_conn_name = "launch_default"
    conn_type = "launch"
    hook_name = "Launch (plug-in scheduler)"

    backend: ClassVar[str] = ""
    """The scheduler of this type of connection; empty if the extra `scheduler` names it."""

    def __init__(self, launch_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.launch_conn_id = launch_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return what the form of Airflow 3.1 hides; newer versions read the form from the provider info.

        Its form has no fields of a type of connection: options are entered as JSON in the field Extra.
        """
        return {"hidden_fields": [*UNUSED_FIELDS], "relabeling": {}, "placeholders": {}}

    @classmethod
    def for_connection(cls, conn_id: str) -> LaunchHook:
        """Return the hook for the connection's type.

        Works also in a script outside of Airflow, on a host with Airflow's configuration: connections then come from
        environment variables, secrets backends or Airflow's database.

        Raises:
            AirflowNotFoundException: the connection does not exist. `launch_local_default` and
                `launch_docker_default` need not be defined.
            InvalidAppError: the connection does not have a launch type.
        """
        connection = _connection(conn_id)
        conn_type = connection.conn_type if connection is not None else NEED_NO_DEFINITION[conn_id]
        # A URI swaps `_` and `-`; both spell one type.
        kind = str(conn_type).replace("-", "_")
        path = BACKENDS[AIRFLOW_TYPES[kind]].hook if kind in AIRFLOW_TYPES else HOOKS.get(kind)
        types = {} if path else plugin_types()
        if kind in types:
            # The type of a plug-in needs no hook of its own here, because its options are enough.
            path = HOOKS[LaunchHook.conn_type]
        if path is None:
            raise InvalidAppError(
                f"connection {conn_id!r} has type {conn_type!r}, which is not a launch type; "
                f"use one of {', '.join((*HOOKS, *AIRFLOW_TYPES, *types))}"
            )
        module, _, name = path.partition(":")
        hook_class = cast("type[LaunchHook]", getattr(importlib.import_module(module), name))
        hook = hook_class(conn_id)
        # Cached, because each lookup is a request to the API server.
        hook.__dict__["_connection"] = connection
        return hook

    @cached_property
    def _connection(self) -> Connection | None:
        return _connection(self.launch_conn_id)

    @cached_property
    def launch(self) -> LaunchConnection:
        """The content of the connection, as every part of this package understands it."""
        connection = self._connection
        # By the scheduler of this class: a subclass of a plug-in may have a type of its own.
        conn_type = BACKENDS[self.backend].connection_type if self.backend else LaunchHook.conn_type
        if (
            connection is not None
            and not self.backend
            and str(connection.conn_type).replace("-", "_") in plugin_types()
        ):
            conn_type = str(connection.conn_type)
        if connection is None:
            definition = Definition(self.launch_conn_id, conn_type)
        else:
            stored = _definition(self.launch_conn_id, connection)
            definition = stored if stored.conn_type in AIRFLOW_TYPES else replace(stored, conn_type=conn_type)
        return LaunchConnection(definition, deployment(), self._make_aws_clients(), _find_definition)

    def _make_aws_clients(self) -> Callable[[Any], Any] | None:
        """Return what makes clients of AWS from a connection of Airflow; None: this engine does not use it."""
        return None

    @property
    def options(self) -> LaunchOptions:
        """The content of the connection, checked strictly.

        Raises:
            InvalidAppError: an extra is unknown or wrong; the text names it.
        """
        return self.launch.options

    @property
    def runner(self) -> Runner:
        """A runner with the connection as its session, so that handles contain the connection."""
        return self.launch.runner

    @property
    def scheduler(self) -> Scheduler[Any]:
        """The scheduler of the connection, the same object each time.

        Raises:
            UnknownSchedulerException: no such scheduler is registered.
            MissingDependencyError: its client library is not installed.
        """
        return self.launch.scheduler

    def new_scheduler(self) -> Scheduler[Any]:
        """Return a scheduler with own clients, for use in another thread.

        Makes no request to Airflow after `options` was read once.
        """
        return self.launch.new_scheduler()

    def merged_cfg(self, cfg: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the options of one launch: those of `[launch] config_file`, of the connection, and of `cfg`.

        Later ones override earlier ones. Text in `cfg` is cast to the type of its option, because templates give text.

        Raises:
            InvalidAppError: `cfg` is not a mapping.
            InvalidRunConfigException: `cfg` has an option that the scheduler does not have, or text that is not valid
                for its option.
        """
        return self.launch.merged_cfg(cfg)

    def orphans(self) -> list[str]:
        """Return handles of running apps whose tasks are over, for a maintenance DAG that cancels them.

        If there are any, it waits 20 s and asks Airflow again. Triggerers do the same automatically.
        """
        from airflow_provider_launch.hooks.task_states import ask_states, deployment_id

        return self.runner.orphans(self.options.backend, ask_states, deployment_id())

    def get_conn(self) -> Scheduler[Any]:
        """Return the scheduler."""
        return self.scheduler

    def test_connection(self) -> tuple[bool, str]:
        """Check the extras, and the scheduler as far as its type can without a launch; the text names the checks."""
        try:
            return True, probe(self.launch)
        except Exception as error:  # noqa: BLE001 - Airflow shows any error as text
            # The form tests under an id of its own, which the user has never seen.
            return False, str(error).replace(f"connection {self.launch_conn_id!r}", "this connection")
        finally:
            self.close()

    def close(self) -> None:
        """Close the clients; may be repeated."""
        if "launch" in self.__dict__:
            self.launch.close()


def _definition(conn_id: str, connection: Connection) -> Definition:
    used = {name: getattr(connection, name) for name in UNUSED_FIELDS}
    return Definition(conn_id, str(connection.conn_type).replace("-", "_"), connection.extra, used)


def _find_definition(conn_id: str) -> Definition | None:
    """Return another connection of Airflow; None: it does not exist."""
    try:
        return _definition(conn_id, find_connection(conn_id))
    except AirflowNotFoundException:
        return None


def _connection(conn_id: str) -> Connection | None:
    try:
        return find_connection(conn_id)
    except AirflowNotFoundException:
        # Only for these ids: Airflow reports "not found" also if its API server fails, and then an app of another
        # connection must not run on this host.
        if conn_id in NEED_NO_DEFINITION:
            return None
        if conn_id in (cures := {backend.default_conn_id: backend.connection_type for backend in BACKENDS.values()}):
            raise AirflowNotFoundException(
                f"connection {conn_id!r} is not defined; create it under Admin, Connections, or with "
                f"airflow connections add {conn_id} --conn-type {cures[conn_id]}"
            ) from None
        raise


class BuiltinLaunchHook(LaunchHook):
    """A hook whose extras are the options of its backend, both of the connection and of launches.

    A subclass sets `backend`, which determines type and default name of its connections.

    Args:
        launch_conn_id: the connection. None: the backend's default connection.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        info = BACKENDS[cls.backend]
        cls.conn_type = info.connection_type
        cls.default_conn_name = info.default_conn_id
        cls.hook_name = f"Launch ({info.title})"
        # Airflow ignores an inherited one.
        type.__setattr__(cls, "get_ui_field_behaviour", LaunchHook.__dict__["get_ui_field_behaviour"])

    def __init__(self, launch_conn_id: str | None = None) -> None:
        super().__init__(launch_conn_id or self.default_conn_name)
