"""`LaunchConnection`: the scheduler of a connection, with its options, defaults and locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.connections.airflow_types import (
    AIRFLOW_TYPES,
    extras_of,
    refuse_extras_of_aws,
    with_named_connections,
)
from airflow_provider_launch.connections.deployment import Deployment
from airflow_provider_launch.connections.extras import (
    LaunchOptions,
    plugin_options,
    plugin_scheduler,
    plugin_types,
    refuse_locked,
    refuse_standard_fields,
    split_extras,
    typed_plugin_options,
)
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers import (
    SCHEDULER_ALIASES,
    get_builtin_scheduler_factories,
    get_scheduler_factories,
)
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.schedulers.structured_opts import checked_options
from airflow_provider_launch.specs import cases
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException

if TYPE_CHECKING:
    from airflow_provider_launch.connections.definition import Definition
    from airflow_provider_launch.schedulers import SchedulerFactory
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.runopts import runopts

CONNECTION_TYPES: Mapping[str, str] = {"launch": "", **{info.connection_type: info.name for info in BACKENDS.values()}}
"""Type of connection to name of its scheduler; empty if the extra `scheduler` names it."""


class LaunchConnection:
    """A connection that is ready for launches. Nothing is checked and no request is sent before it is used.

    `make_aws_clients` makes clients of AWS from a connection of Airflow that `aws_conn_id` names; `find` returns
    another connection, which extras such as `kubernetes_conn_id` name. Without them these extras are refused.
    """

    def __init__(
        self,
        definition: Definition,
        deployment: Deployment | None = None,
        make_aws_clients: Callable[[Any], Any] | None = None,
        find: Callable[[str], Definition | None] | None = None,
    ) -> None:
        self._definition = definition
        self.deployment = deployment or Deployment()
        self._make_aws_clients = make_aws_clients
        self._find = find

    def __repr__(self) -> str:
        return f"LaunchConnection({self.conn_id!r}, {self._definition.conn_type!r})"

    @property
    def conn_id(self) -> str:
        """The id of the connection; also the session name in the handles of its apps."""
        return self._definition.conn_id

    @property
    def backend(self) -> str:
        """The name of its built-in scheduler; empty if it is for a scheduler of a plug-in."""
        backend = CONNECTION_TYPES.get(self._conn_type, AIRFLOW_TYPES.get(self._conn_type))
        if backend is not None:
            return backend
        if self._conn_type not in (types := plugin_types()):
            raise InvalidAppError(
                f"connection {self.conn_id!r} has type {self._definition.conn_type!r}, which is not a launch type; "
                f"use one of {', '.join((*CONNECTION_TYPES, *AIRFLOW_TYPES, *types))}"
            )
        return ""

    @property
    def _conn_type(self) -> str:
        # A URI swaps `_` and `-`; both spell one type.
        return self._definition.conn_type.replace("-", "_")

    @cached_property
    def options(self) -> LaunchOptions:
        """The content of the connection, checked strictly."""
        if self._definition.conn_type in AIRFLOW_TYPES:
            extras = extras_of(self._definition)
        else:
            refuse_standard_fields(self.conn_id, self._definition.unused)
            extras = self._definition.extras()
        placeholders = extras.pop("placeholders", None)
        if not isinstance(placeholders, (Mapping, type(None))):
            raise InvalidAppError(
                f"connection {self.conn_id!r}: the extra 'placeholders' must be an object of values by name, "
                f"not {type(placeholders).__name__}"
            )
        try:
            found = self._options(extras)
            self._refuse_programs(found.params)
            return replace(found, placeholders=dict(placeholders or {}))
        except InvalidAppError as error:
            raise InvalidAppError(f"connection {self.conn_id!r}: {error}") from error

    def _options(self, extras: Mapping[str, Any]) -> LaunchOptions:
        if not self.backend:
            scheduler = None if self._conn_type in CONNECTION_TYPES else plugin_scheduler(self._conn_type)
            if scheduler is not None:
                return typed_plugin_options(extras, scheduler)
            return plugin_options(extras)
        info = BACKENDS[self.backend]
        # By registered name, because `kubeconfigSecret` and `sshConnId` are options, too.
        extras = checked_options(info.connection_options()).registered(extras)
        extras = with_named_connections(extras, self._find)
        if self.backend == "aws_batch":
            refuse_extras_of_aws(extras)
        params, cfg = split_extras(extras, info.connection_options(), info.launch_options())
        identity = " ".join(f"{name}={params[name]}" for name in info.identity_fields if params[name] is not None)
        if params.get("aws_conn_id"):
            if self._make_aws_clients is None:
                raise InvalidAppError("aws_conn_id names a connection of Airflow, which is not used here; leave it out")
            params["make_clients"] = self._make_aws_clients
        locked = tuple(params.get("locked") or ())
        return LaunchOptions(info.name, params, cfg, f"{info.name} {identity}".strip(), locked)

    def _refuse_programs(self, params: Mapping[str, Any]) -> None:
        """Refuse a kubeconfig in the connection that starts programs, unless the deployment allows it.

        In any spelling, and also for a plug-in, which may extend the scheduler of Kubernetes.
        """
        given = [
            text for name, text in params.items() if cases.camel_to_snake(str(name)) == "kubeconfig_secret" and text
        ]
        if given and not self.deployment.allow_kubeconfig_exec:
            from airflow_provider_launch.schedulers.kubernetes.access import refuse_programs

            for text in given:
                refuse_programs(str(text))

    # ---- scheduler -------------------------------------------------------------------------------------------

    @cached_property
    def runner(self) -> Runner:
        """A runner with the connection as its session, so that handles contain the connection."""
        return self._make_runner()

    def _make_runner(self) -> Runner:
        options = self.options
        # Built-in types always use the built-in scheduler, which has declared the extras.
        factories: dict[str, Any] | None = get_builtin_scheduler_factories() if self.backend else None
        if options.max_time_limit_s is not None:
            factories = get_scheduler_factories()
            if options.backend in factories:
                factories[options.backend] = _limited(factories[options.backend], options.max_time_limit_s)
        return Runner(
            self.conn_id,
            factories,
            scheduler_params={options.backend: dict(options.params)},
            trackers=self.trackers,
        )

    @cached_property
    def trackers(self) -> dict[str, str | None]:
        """The trackers of all replicas, name to config."""
        return self.deployment.trackers()

    @property
    def scheduler(self) -> Scheduler[Any]:
        """The scheduler of the connection, the same object each time.

        It may be unknown, or its client library may be missing.
        """
        return self.runner.scheduler(self.options.backend)

    def new_scheduler(self) -> Scheduler[Any]:
        """Return a scheduler with own clients, for use in another thread."""
        return self._make_runner().scheduler(self.options.backend)

    def close(self) -> None:
        """Close the clients; may be repeated."""
        if "runner" in self.__dict__:
            self.runner.close()

    # ---- one launch ------------------------------------------------------------------------------------------

    def merged_cfg(self, cfg: Mapping[str, Any] | None, given_by: str = "cfg of the task") -> dict[str, Any]:
        """Return the options of one launch: those of `[launch] config_file`, of the connection, and of `cfg`.

        Later ones override earlier ones; those of `cfg` as `cast_cfg` returns them.
        """
        schema = self.scheduler.run_opts()
        own = self.cast_cfg(cfg, given_by)
        if len(schema) == 0:
            return {**self.options.cfg, **own}
        # By registered name, so that two spellings of one option are merged.
        return {**self.deployment.options(self.options.backend, schema), **self._own_cfg(schema), **own}

    def cast_cfg(self, cfg: Mapping[str, Any] | None, given_by: str = "cfg of the task") -> dict[str, Any]:
        """Return the options in `cfg` by registered name; text is cast to the type of its option.

        Templates give text. Options that the scheduler does not have, or that the connection locks, are refused; errors
        name `given_by`.
        """
        given: object = cfg
        if given is not None and not isinstance(given, Mapping):
            raise InvalidAppError(
                f"cfg must be a mapping of options, not {type(given).__name__}; "
                f"a template of a whole mapping needs render_template_as_native_obj=True in the DAG"
            )
        schema = self.scheduler.run_opts()
        own = dict(cfg or {})
        refuse_locked(self.conn_id, self.options, schema, own)
        try:
            return schema.cast(own) if len(schema) else own
        except InvalidRunConfigException as error:
            name = error.cfg_key
            reason = str(error).partition(". Given:")[0]
            if schema.registered_name(name) is None and name in self.options.params:
                reason = f"option {name!r} defines where apps run; set it in connection {self.conn_id!r}"
            raise InvalidRunConfigException(f"{given_by}: {reason}", name, own) from None

    def check(self) -> None:
        """Check the options of the connection, and the names that it locks, against those of its scheduler."""
        schema = self.scheduler.run_opts()
        refuse_locked(self.conn_id, self.options, schema, ())
        if len(schema):
            self._own_cfg(schema)

    def _own_cfg(self, schema: runopts) -> dict[str, Any]:
        """Return the launch options that the connection sets, by registered name."""
        own = self.options.cfg
        try:
            cast = schema.cast(own)
            for name, value in cast.items():
                if value is not None:
                    schema.check(name, value, own)
        except InvalidRunConfigException as error:
            reason = str(error).partition(". Given:")[0]
            raise InvalidRunConfigException(
                f"cfg of connection {self.conn_id!r}: {reason}", error.cfg_key, own
            ) from None
        return cast

    def refuse_overlays(self, app: AppDef) -> None:
        """Refuse overlays of roles if the connection locks options, because they could override these."""
        for role in app.roles if self.options.locked else ():
            for name in _overlay_names(self.options.backend):
                if role.metadata.get(name):
                    raise InvalidAppError(
                        f"role {role.name!r} has an overlay for {name!r} in its metadata, which could override "
                        f"options that connection {self.conn_id!r} locks; leave it out"
                    )


def _overlay_names(backend: str) -> tuple[str, ...]:
    """Return the names under which a role may have overlays that this scheduler applies."""
    if backend in BACKENDS:
        return (backend,)
    # `local_docker` applies those of `docker`, and a plug-in may extend any built-in scheduler.
    return (backend, SCHEDULER_ALIASES[backend]) if backend in SCHEDULER_ALIASES else (backend, *BACKENDS)


def _limited(factory: SchedulerFactory, limit_s: float) -> SchedulerFactory:
    """Return a factory whose schedulers have this `max_time_limit_s`."""

    def create(session_name: str, **kwargs: Any) -> Scheduler[Any]:
        scheduler = factory(session_name, **kwargs)
        scheduler.max_time_limit_s = limit_s
        return scheduler

    return create
