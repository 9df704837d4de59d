"""The scheduler that a command means: that of a connection, or one at its default location."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.connections.definition import Definition, undefined
from airflow_provider_launch.connections.sources import find_definition, has_airflow, shell_deployment
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers import SCHEDULER_ALIASES
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.handles import parse_app_handle

if TYPE_CHECKING:
    from typing_extensions import Self

    from airflow_provider_launch.connections.launch import LaunchConnection
    from airflow_provider_launch.schedulers.api import Scheduler

log = logging.getLogger(__name__)
SESSION = "torchx"
"""The session of apps without a connection; that of `get_runner`, so that a program can follow them, too."""
_WITHOUT_CONNECTION = ("", SESSION)


@dataclass
class Target:
    """One scheduler, for one command; leaving it closes its clients."""

    runner: Runner
    backend: str
    connection: LaunchConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.runner.close()

    @property
    def scheduler(self) -> Scheduler[Any]:
        """The scheduler."""
        return self.runner.scheduler(self.backend)

    def options(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the options of a launch: those of texts such as `queue=gpu`, above those of connection or files."""
        if self.connection is None:
            from airflow_provider_launch.runner import config

            cfg: dict[str, Any] = self.runner.cfg_from_str(self.backend, *texts)
            given = {*cfg}
            config.apply(self.backend, cfg)
            _announce(f"options of {self.backend}", cfg.keys() - given)
            return cfg
        from airflow_provider_launch.util.types import to_dict

        named: dict[str, Any] = {}
        for text in texts:
            named |= to_dict(text)
        return self.connection.merged_cfg(named, "-cfg")

    def component_defaults(self, name: str) -> Mapping[str, str]:
        """Return the defaults for the parameters of a component, from the configuration file."""
        if self.connection is not None:
            return self.connection.deployment.component_defaults(name)
        from airflow_provider_launch.runner.config import get_configs

        found = get_configs("component", name)
        _announce(f"arguments of {name}", found)
        return found


def for_launch(scheduler: str | None, conn_id: str | None) -> Target:
    """Return the target of a command that names no app.

    Without arguments it is that of `[cli:run]` in the configuration file, else `local`; two are refused.
    """
    if scheduler is None and conn_id is None:
        from airflow_provider_launch.runner.config import get_configs

        defaults = get_configs("cli", "run")
        scheduler, conn_id = defaults.get("scheduler"), defaults.get("connection")
    _refuse_both(scheduler, conn_id)
    if conn_id is not None:
        return _of_connection(connection_of(conn_id))
    return Target(Runner(SESSION), scheduler or "local")


def _announce(what: str, names: Iterable[str]) -> None:
    """Warn if the file of the current directory may have set these: it can come with a cloned repository."""
    from airflow_provider_launch.runner.config import find_configs

    here = next((path for path in find_configs() if not Path(path).is_absolute()), None)
    if here is not None and (text := ", ".join(sorted(names))):
        log.warning("%s are read from files, also from ./%s: %s; LAUNCHCONFIG= reads none", what, here, text)


def cli_defaults() -> dict[str, str]:
    """Return the section `[cli:run]` of the configuration files: scheduler, connection, component, workspace.

    Raises FileNotFoundError for that of `LAUNCHCONFIG`, and ValueError for one that is not valid INI.
    """
    from airflow_provider_launch.runner.config import get_configs

    found = get_configs("cli", "run")
    _announce("defaults of launch run", found)
    return found


def for_handle(handle: str, scheduler: str | None, conn_id: str | None) -> Target:
    """Return the target of an app: that of its connection, unless the caller names another one.

    Refuses a connection that is not defined here, or is for another scheduler: the default location of the scheduler
    would have other apps, or none.
    """
    _refuse_both(scheduler, conn_id)
    parsed = parse_app_handle(handle)
    session = parsed.session_name
    if scheduler is not None:
        target = Target(Runner(session), scheduler)
        given_by = f"-s {scheduler}"
    elif conn_id is not None:
        target, given_by = _of_connection(connection_of(conn_id)), f"connection {conn_id!r}"
    elif session in _WITHOUT_CONNECTION and find_definition(session) is None:
        return Target(Runner(session), parsed.scheduler_backend)
    else:
        try:
            connection = connection_of(session)
        except UndefinedError as error:
            raise UndefinedError(
                f"{error}; for an app of a program that has named its session {session!r}, add "
                f"-s {parsed.scheduler_backend}"
            ) from None
        target, given_by = _of_connection(connection), f"connection {session!r}"
    if _current(target.backend) != _current(parsed.scheduler_backend):
        target.runner.close()
        raise InvalidAppError(
            f"{handle!r} is an app of scheduler {parsed.scheduler_backend!r}, but {given_by} is for {target.backend!r}"
        )
    return target


class UndefinedError(InvalidAppError):
    """No connection of this id is defined here."""


def connection_of(conn_id: str) -> LaunchConnection:
    """Return a connection of the environment, of the file, or of Airflow; Airflow is asked last, and takes seconds.

    Raises:
        UndefinedError: none of them has it; the text names the places that were searched.
    """
    definition = definition_of(conn_id)
    if definition is None:
        searched = "variable, the file of connections" if has_airflow() else "variable and the file of connections"
        ending = " and Airflow have none" if has_airflow() else " have none, and there is no Airflow here"
        raise UndefinedError(
            f"connection {conn_id!r} is not defined here: the {searched}{ending}; set AIRFLOW_CONN_{conn_id.upper()}"
        )
    connection = opened(definition)
    connection.backend  # noqa: B018 - refuses other types
    return connection


def opened(definition: Definition) -> LaunchConnection:
    """Return the connection of a definition, with the settings of this shell; nothing of it is checked yet."""
    from airflow_provider_launch.connections.launch import LaunchConnection

    return LaunchConnection(definition, shell_deployment(), _aws_clients, find_definition)


def definition_of(conn_id: str) -> Definition | None:
    """Return the definition of a connection; None if there is none."""
    found = find_definition(conn_id)
    if found is None and has_airflow():
        from airflow_provider_launch.cli.from_airflow import find_in_airflow

        found = find_in_airflow(conn_id)
    return found or undefined(conn_id)


def _of_connection(connection: LaunchConnection) -> Target:
    return Target(connection.runner, connection.options.backend, connection)


def _aws_clients(options: Any) -> Any:
    """Return the clients of an AWS connection of Airflow."""
    from airflow_provider_launch.cli.from_airflow import aws_clients

    return aws_clients(options)


def _current(backend: str) -> str:
    return SCHEDULER_ALIASES.get(backend, backend)


def _refuse_both(scheduler: str | None, conn_id: str | None) -> None:
    if scheduler is not None and conn_id is not None:
        raise InvalidAppError("give either -s or -c: a connection names its scheduler")
