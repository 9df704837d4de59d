"""`LaunchHook`: turns an Airflow connection into a runner."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_provider_launch._airflow import AirflowNotFoundException, BaseHook
from airflow_provider_launch.hooks.connections import find_connection
from airflow_provider_launch.hooks.extras import (
    LaunchOptions,
    config_files,
    file_errors,
    refuse_locked,
    refuse_standard_fields,
    split_extras,
)
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers import get_builtin_scheduler_factories
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.runopts import runopts

__all__ = ["DEFAULT_CONN_ID", "HOOKS", "BuiltinLaunchHook", "LaunchHook"]

DEFAULT_CONN_ID = "launch_local_default"
"""The connection of a task without one: local processes with default options."""
_NEED_NO_DEFINITION = {DEFAULT_CONN_ID: "launch_local", "launch_docker_default": "launch_docker"}
"""Connections that work with default options, on this host: local processes, and Docker at the default socket."""

UNUSED_FIELDS = ("host", "port", "login", "password", "schema")
"""Standard fields of a connection that must be empty: all values are extras."""

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
        conn_type = connection.conn_type if connection is not None else _NEED_NO_DEFINITION[conn_id]
        # A URI swaps `_` and `-`; both spell one type.
        path = HOOKS.get(str(conn_type).replace("-", "_"))
        if path is None:
            raise InvalidAppError(
                f"connection {conn_id!r} has type {conn_type!r}, which is not a launch type; "
                f"use one of {', '.join(HOOKS)}"
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
    def options(self) -> LaunchOptions:
        """The content of the connection, checked strictly.

        Raises:
            InvalidAppError: an extra is unknown or wrong; the text names it.
        """
        connection = self._connection
        if connection is None:
            return self._options({})
        used = {name: getattr(connection, name) for name in UNUSED_FIELDS}
        refuse_standard_fields(self.launch_conn_id, used)
        extras = dict(_extras(connection, self.launch_conn_id))
        placeholders = extras.pop("placeholders", None)
        if not isinstance(placeholders, (Mapping, type(None))):
            raise InvalidAppError(
                f"connection {self.launch_conn_id!r}: the extra 'placeholders' must be an object of values by name, "
                f"not {type(placeholders).__name__}"
            )
        try:
            return replace(self._options(extras), placeholders=dict(placeholders or {}))
        except InvalidAppError as error:
            raise InvalidAppError(f"connection {self.launch_conn_id!r}: {error}") from error

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        known = {"scheduler": str, "params": Mapping, "cfg": Mapping, "locked": list}
        given = {key: value for key, value in extras.items() if value is not None}
        for key, value in given.items():
            if key not in known:
                raise InvalidAppError(
                    f"unknown extra {key!r}; there are {', '.join(known)}, and options of the scheduler go into 'cfg'"
                )
            if not isinstance(value, known[key]):
                kind = {"scheduler": "text", "locked": "a list of names"}.get(key, "an object")
                raise InvalidAppError(f"extra {key!r} must be {kind}, not {type(value).__name__}")
        if not given.get("scheduler"):
            raise InvalidAppError("the extra 'scheduler' is missing; name a scheduler that a plug-in registers")
        params = dict(given.get("params", {}))
        digest = hashlib.sha256(json.dumps(params, sort_keys=True, default=repr).encode()).hexdigest()[:12]
        locked = tuple(map(str, given.get("locked", ())))
        identity = f"{given['scheduler']} {digest}"
        return LaunchOptions(given["scheduler"], params, dict(given.get("cfg", {})), identity, locked)

    @cached_property
    def runner(self) -> Runner:
        """A runner with the connection as its session, so that handles contain the connection."""
        return self._make_runner()

    def _make_runner(self) -> Runner:
        options = self.options
        # Built-in types always use the built-in scheduler, which has declared the extras.
        factories = get_builtin_scheduler_factories() if self.backend else None
        return Runner(
            self.launch_conn_id,
            factories,
            scheduler_params={options.backend: dict(options.params)},
            trackers=self._trackers,
        )

    @cached_property
    def _trackers(self) -> dict[str, str | None]:
        from airflow_provider_launch.runner.injected_env import get_configured_trackers

        with file_errors():
            return get_configured_trackers(config_files())

    def _file_options(self, schema: runopts) -> dict[str, Any]:
        """Return the options of the scheduler from the configuration file."""
        if not (files := config_files()):
            return {}
        from airflow_provider_launch.runner.config import read_options

        with file_errors():
            return dict(read_options(files[0], self.options.backend, schema))

    @property
    def scheduler(self) -> Scheduler[Any]:
        """The scheduler of the connection, the same object each time.

        Raises:
            UnknownSchedulerException: no such scheduler is registered.
            MissingDependencyError: its client library is not installed.
        """
        return self.runner.scheduler(self.options.backend)

    def new_scheduler(self) -> Scheduler[Any]:
        """Return a scheduler with own clients, for use in another thread.

        Makes no request to Airflow after `options` was read once.
        """
        return self._make_runner().scheduler(self.options.backend)

    def merged_cfg(self, cfg: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the options of one launch: those of `[launch] config_file`, of the connection, and of `cfg`.

        Later ones override earlier ones. Text in `cfg` is cast to the type of its option, because templates give text.

        Raises:
            InvalidAppError: `cfg` is not a mapping.
            InvalidRunConfigException: `cfg` has an option that the scheduler does not have, or text that is not valid
                for its option.
        """
        given: object = cfg
        if given is not None and not isinstance(given, Mapping):
            raise InvalidAppError(
                f"cfg must be a mapping of options, not {type(given).__name__}; "
                f"a template of a whole mapping needs render_template_as_native_obj=True in the DAG"
            )
        schema = self.scheduler.run_opts()
        own = dict(cfg or {})
        refuse_locked(self.launch_conn_id, self.options, schema, own)
        if len(schema) == 0:
            return {**self.options.cfg, **own}
        defaults = self._file_options(schema)
        # By registered name, so that two spellings of one option are merged.
        try:
            return {
                **defaults,
                **schema.registered(self.options.cfg, strict=True),
                **schema.cast(own),
            }
        except InvalidRunConfigException as error:
            name = error.cfg_key
            reason = str(error).partition(". Given:")[0]
            if schema.registered_name(name) is None and name in self.options.params:
                reason = f"option {name!r} defines where apps run; set it in connection {self.launch_conn_id!r}"
            raise InvalidRunConfigException(f"cfg of the task: {reason}", name, own) from None

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
            return True, f"extras are valid; {self._probe()}"
        except Exception as error:  # noqa: BLE001 - Airflow shows any error as text
            return False, str(error)
        finally:
            self.close()

    def _probe(self) -> str:
        """List the apps, and return what answered. Subclasses check more; any error is shown to the user."""
        options = self.options
        count = len(self.scheduler.list())
        return f"{self._title(options)} answered and lists {count} apps; nothing was launched"

    def _title(self, options: LaunchOptions) -> str:
        return f"scheduler {options.backend!r}"

    def close(self) -> None:
        """Close the clients; may be repeated."""
        if "runner" in self.__dict__:
            self.runner.close()


def _connection(conn_id: str) -> Connection | None:
    try:
        return find_connection(conn_id)
    except AirflowNotFoundException:
        # Only for these ids: Airflow reports "not found" also if its API server fails, and then an app of another
        # connection must not run on this host.
        if conn_id in _NEED_NO_DEFINITION:
            return None
        if conn_id in (cures := {backend.default_conn_id: backend.connection_type for backend in BACKENDS.values()}):
            raise AirflowNotFoundException(
                f"connection {conn_id!r} is not defined; create it under Admin, Connections, or with "
                f"airflow connections add {conn_id} --conn-type {cures[conn_id]}"
            ) from None
        raise


def _extras(connection: Connection, conn_id: str) -> Mapping[str, Any]:
    text = connection.extra
    if not text:
        return {}
    try:
        extras = json.loads(text)
    except ValueError as error:
        raise InvalidAppError(f"the extra of connection {conn_id!r} is not valid JSON: {error}") from error
    if not isinstance(extras, dict):
        raise InvalidAppError(f"the extra of connection {conn_id!r} must be a JSON object")
    return extras


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

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        info = BACKENDS[self.backend]
        params, cfg = split_extras(extras, info.connection_options(), info.launch_options())
        identity = " ".join(f"{name}={params[name]}" for name in info.identity_fields if params[name] is not None)
        locked = tuple(params.get("locked") or ())
        return LaunchOptions(info.name, params, cfg, f"{info.name} {identity}".strip(), locked)
