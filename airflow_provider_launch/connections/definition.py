"""A connection as someone wrote it: in Airflow, in a variable of the environment, or in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_provider_launch.specs.errors import InvalidAppError

UNUSED_FIELDS = ("host", "port", "login", "password", "schema")
"""Standard fields of a connection that must be empty: all values are extras."""
NEED_NO_DEFINITION: Mapping[str, str] = {
    "launch_local_default": "launch_local",
    "launch_docker_default": "launch_docker",
}
"""Connections that work with default options, on this host: local processes, and Docker at the default socket."""
_EXTRA = "__extra__"
"""The parameter of a URI with all extras as JSON."""
_KEYS = ("conn_type", "description", *UNUSED_FIELDS)


@dataclass(frozen=True)
class Definition:
    """The values of a connection, not checked yet."""

    conn_id: str
    conn_type: str
    extra: str | Mapping[str, Any] | None = None
    """Extras, as JSON text or as an object."""
    unused: Mapping[str, object] = field(default_factory=dict)
    """The values of `UNUSED_FIELDS`."""
    source: str = ""
    """Where it was found, for people: `variable AIRFLOW_CONN_X`."""

    def extras(self) -> dict[str, Any]:
        """Return the extras by name; refuse others than a JSON object."""
        found: object = self.extra or {}
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except ValueError as error:
                raise InvalidAppError(f"the extra of connection {self.conn_id!r} is not valid JSON: {error}") from error
        if not isinstance(found, Mapping):
            raise InvalidAppError(f"the extra of connection {self.conn_id!r} must be a JSON object")
        return dict(found)


def undefined(conn_id: str) -> Definition | None:
    """Return the definition of a connection that needs none; None for all others."""
    conn_type = NEED_NO_DEFINITION.get(conn_id)
    return None if conn_type is None else Definition(conn_id, conn_type, source="default")


def read_definition(conn_id: str, value: object, source: str) -> Definition:
    """Return the definition that a URI, a JSON text or an object of fields stands for, in the formats of Airflow.

    The error for other formats does not quote the text, because it may have secrets.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            # Not the error itself: its attribute has the whole text.
            raise InvalidAppError(f"connection {conn_id!r} in {source} is not valid JSON: {error.args[0]}") from None
    if isinstance(value, str):
        return _of_uri(conn_id, value, source)
    if not isinstance(value, Mapping):
        raise InvalidAppError(f"connection {conn_id!r} in {source} must be a URI or an object of fields")
    known = {*_KEYS, "conn_id", "extra", "extra_dejson", "id", "is_encrypted", "is_extra_encrypted", "team_name"}
    if unknown := sorted(map(str, value.keys() - known)):
        raise InvalidAppError(
            f"connection {conn_id!r} in {source} has the unknown field {unknown[0]!r}; there are conn_type and extra, "
            f"and options go into extra"
        )
    conn_type = value.get("conn_type")
    if not isinstance(conn_type, str) or not conn_type:
        raise InvalidAppError(f"connection {conn_id!r} in {source} has no conn_type")
    extra = value.get("extra") or value.get("extra_dejson")
    return Definition(conn_id, conn_type, extra, {name: value.get(name) for name in UNUSED_FIELDS}, source)


def _of_uri(conn_id: str, text: str, source: str) -> Definition:
    try:
        parts = urlsplit(text.strip())
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        unused = {
            "host": unquote(parts.hostname or "") or None,
            "port": parts.port,
            "login": unquote(parts.username or "") or None,
            "password": unquote(parts.password or "") or None,
            "schema": unquote(parts.path[1:]),
        }
    except ValueError:
        raise InvalidAppError(f"connection {conn_id!r} in {source} is not a valid URI") from None
    if not parts.scheme:
        raise InvalidAppError(
            f"connection {conn_id!r} in {source} is neither a URI (launch-local://?root=...) nor a JSON object"
        )
    extra = query.get(_EXTRA, query)
    return Definition(conn_id, parts.scheme, extra, unused, source)
