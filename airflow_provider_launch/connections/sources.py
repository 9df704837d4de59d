"""Connections and settings that a shell has without Airflow: in its environment, and in a file."""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_launch.connections.definition import Definition, read_definition
from airflow_provider_launch.connections.deployment import Deployment
from airflow_provider_launch.settings import ENV_LAUNCH_HOME, ENV_TORCHX_HOME, getenv
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.documents import owner_problem, read_document, read_text
from airflow_provider_launch.util.types import str_to_bool

ENV_CONNECTIONS = "LAUNCH_CONNECTIONS"
"""The variable with the path of the file of connections."""
_PREFIX = "AIRFLOW_CONN_"
_FILE_NAMES = ("connections.yaml", "connections.yml", "connections.json")
_SECTION = "AIRFLOW__LAUNCH__"


def find_definition(conn_id: str) -> Definition | None:
    """Return a connection of the environment, else of the file; None if neither has it."""
    name = f"{_PREFIX}{conn_id.upper()}"
    if conn_id and (text := os.environ.get(name)):
        return read_definition(conn_id, text, f"variable {name}")
    return next((found for found in _in_file() if found.conn_id == conn_id), None)


def definitions() -> list[Definition]:
    """Return all connections of the environment and the file; one in the environment hides one in the file.

    Ids in the environment are in lower case, because the names of variables are in upper case.
    """
    found = {
        conn_id: read_definition(conn_id, text, f"variable {name}")
        for name, text in sorted(os.environ.items())
        if name.startswith(_PREFIX) and name.isupper() and text and (conn_id := name.removeprefix(_PREFIX).lower())
    }
    return [*found.values(), *(each for each in _in_file() if each.conn_id.lower() not in found)]


def connections_file() -> Path | None:
    """Return the file of connections: that of `LAUNCH_CONNECTIONS`, else one in the launcher's home; None: no file."""
    given = os.environ.get(ENV_CONNECTIONS)
    if given is not None:
        path = Path(given).expanduser()
        if given and not path.is_file():
            raise InvalidAppError(f"{ENV_CONNECTIONS}={given!r} is not an existing file; correct it, or unset it")
        return path if given else None
    home = getenv(ENV_LAUNCH_HOME, ENV_TORCHX_HOME)
    folder = Path(home).expanduser() if home else Path.home() / ".torchx"
    return next((path for name in _FILE_NAMES if (path := folder / name).is_file()), None)


def _in_file() -> Iterator[Definition]:
    path = connections_file()
    if path is None:
        return
    try:
        if problem := owner_problem(path, any_owner=True):
            raise PermissionError(problem)
        found = read_document(path) or {}
    except (OSError, ValueError) as error:
        raise InvalidAppError(f"the connections in {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InvalidAppError(f"the connections in {path} cannot be read: it must be an object of connections by id")
    for conn_id, value in found.items():
        yield read_definition(str(conn_id), value, str(path))


# ---- Airflow's configuration ---------------------------------------------------------------------------------------


def has_airflow() -> bool:
    """Return whether this shell belongs to a configured Airflow; importing another one would write a configuration."""
    return _config_path().is_file() or any(
        name.startswith(("AIRFLOW__DATABASE__", "AIRFLOW__SECRETS__")) for name in os.environ
    )


def shell_deployment() -> Deployment:
    """Return the settings of `[launch]` from the environment and `airflow.cfg`, without Airflow."""
    try:
        exec_allowed = str_to_bool(_setting("allow_kubeconfig_exec") or "false")
    except ValueError as error:
        raise InvalidAppError(f"allow_kubeconfig_exec in the section launch of airflow.cfg: {error}") from error
    return Deployment(_setting("config_file"), exec_allowed)


def _setting(name: str) -> str:
    given = os.environ.get(f"{_SECTION}{name.upper()}")
    if given is not None:
        return given
    path = _config_path()
    if not path.is_file():
        return ""
    parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    try:
        parser.read_string(read_text(path), str(path))
    except (OSError, ValueError, configparser.Error) as error:
        raise InvalidAppError(f"{path} cannot be read: {error}") from error
    return parser.get("launch", name, fallback="") or ""


def _config_path() -> Path:
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    return Path(os.environ.get("AIRFLOW_CONFIG") or home / "airflow.cfg").expanduser()
