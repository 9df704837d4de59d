"""Forms of connections in Airflow, generated from the classes of options: for this package, and for plug-ins."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.connections.definition import UNUSED_FIELDS
from airflow_provider_launch.schedulers.structured_opts import json_schema_fields

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.structured_opts import StructuredOpts

__all__ = ["connection_form", "plugin_connection_type"]

LAUNCH_SECTION = "Defaults of each launch"
"""The section of the form that is closed; fields without a section, where apps run, are in the open one."""


def connection_form(connection: type[StructuredOpts], launch: type[StructuredOpts]) -> dict[str, dict[str, Any]]:
    """Return the fields of the connection form, connection options first; an empty field means unset."""
    form: dict[str, dict[str, Any]] = {}
    for cls in (connection, launch):
        for name, schema in json_schema_fields(cls).items():
            if name in form:
                continue  # the field of the connection is the default of the option
            form[name] = {
                "label": _label(name),
                "description": _help(name, schema),
                "schema": _nullable(name, schema),
            }
            if cls is launch:
                form[name]["schema"]["section"] = LAUNCH_SECTION
            if name.endswith(("password", "secret", "secret_access_key", "session_token")):
                form[name]["schema"]["format"] = "password"
    return form


_UNITS = {"_s": " (seconds)", "_mb": " (MB)"}
_WORDS = {
    "arn": "ARN",
    "aws": "AWS",
    "ca": "CA",
    "cpu": "CPU",
    "cwd": "current directory",
    "env": "environment",
    "id": "ID",
    "ip": "IP",
    "gpus": "GPUs",
    "shm": "shared memory",
    "tls": "TLS",
    "ttl": "time to live",
    "url": "URL",
}


def _label(name: str) -> str:
    unit = next((unit for unit in _UNITS if name.endswith(unit)), "")
    words = name.removesuffix(unit).replace(".", "_").split("_")
    plain = " ".join(_WORDS.get(word, word) for word in words) + _UNITS.get(unit, "")
    return plain[:1].upper() + plain[1:]


def _help(name: str, schema: dict[str, Any]) -> str:
    """Return the help for a form, as plain text: the option, what it does, and its default in words."""
    text = " ".join(_quoted(str(schema["description"])).split())
    text = text.replace("None means that ", "Default: ").replace("None means ", "Default: ")
    ending = "" if "Default:" in text else f" Default: {_in_words(name, schema.get('default'))}."
    return f"{name}: {text}{ending}"


def _quoted(text: str) -> str:
    """Return the text with code in quotation marks, because the form shows no Markdown."""
    return re.sub("`([^`]*)`", lambda found: found[1] if '"' in found[1] else f'"{found[1]}"', text)


_DEFAULT_UNITS = {"_s": "seconds", "_mb": "MB", "_days": "days"}


def _in_words(name: str, value: object) -> str:
    """Return a default for people: `30 seconds`, `yes`, `none`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value in (None, "", [], {}):
        return "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    if not isinstance(value, (int, float)):
        return str(value)
    unit = next((unit for ending, unit in _DEFAULT_UNITS.items() if name.endswith(ending)), "")
    return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}".rstrip()


_KINDS = ("string", "number", "boolean", "object", "array", "null")
"""The types of JSON, for an item of a plug-in that may have any."""


def _nullable(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in the format of Airflow's widgets: one level, with "null" among the types."""
    flat = {key: value for key, value in schema.items() if key not in ("description", "default", "anyOf", "title")}
    # `X | None` is an `anyOf` of two; the form supports only a list of types.
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            flat.update(choice)
    items = flat.get("items")
    if items is not None and "type" not in items:
        # Airflow treats items without a type as texts, one per line: an object would become the text of an object.
        kinds = [choice.get("type") for choice in items.get("anyOf", ())]
        flat["items"] = {"type": kinds if kinds and all(kinds) else [*_KINDS]}
    kind = flat.get("type", "string")
    if kind == "boolean" and schema.get("default") is not False:
        # A switch has only two positions: it would show "off" for an unset option whose default is on.
        shown = {"true": "yes", "false": "no", **_unset(name, schema)}
        return {"type": ["string", "null"], "enum": ["true", "false", None], "values_display": shown}
    flat["type"] = [*([kind] if isinstance(kind, str) else kind), "null"]
    if "enum" in flat:
        flat["enum"] = [*flat["enum"], None]
        flat["values_display"] = _unset(name, schema)
    # No default, because the form would store it, and later changes of the default would have no effect.
    return flat


def _unset(name: str, schema: dict[str, Any]) -> dict[str, str]:
    """Return the label of an unset field in a list of choices; Airflow would show `null`."""
    default = schema.get("default")
    return {"null": "default" if default is None else f"default: {_in_words(name, default)}"}


COMMON_FIELDS: dict[str, dict[str, Any]] = {
    "max_time_limit_s": {
        "label": "Max time limit (seconds)",
        "description": 'max_time_limit_s: Maximum "time_limit_s" of a launch, and the default for launches without '
        "one. Default: launches need no limit.",
        "schema": {"type": ["number", "null"], "minimum": 1},
    },
    "locked": {
        "label": "Locked",
        "description": "locked: Names of launch options that tasks cannot change: the value of the connection is used, "
        "or the default. Default: none.",
        "schema": {"type": ["array", "null"], "items": {"type": "string"}},
    },
    "placeholders": {
        "label": "Placeholders",
        "description": "placeholders: JSON object with values by name for settings that steps of pipelines leave to "
        "the connection. Default: none.",
        "schema": {"type": ["object", "null"]},
    },
}
"""Extras that every connection of a plug-in may have, also if its options do not declare them."""


def plugin_connection_type(conn_type: str, hook: str, title: str, scheduler: type[Any]) -> dict[str, Any]:
    """Return the entry of `connection-types` in the provider info of a plug-in, with the form of its options.

    Args:
        conn_type: the type, which the entry point in `airflow_provider_launch.connections` has too.
        hook: `module.Class` of its hook, a subclass of `LaunchHook`.
        title: text in Airflow's list of types.
        scheduler: its scheduler, whose attributes `connection_type` and `opts_type` are the options.
    """
    return {
        "connection-type": conn_type,
        "hook-class-name": hook,
        "hook-name": title,
        "conn-fields": {**connection_form(scheduler.connection_type, scheduler.opts_type)}
        | {
            name: form
            for name, form in COMMON_FIELDS.items()
            if name not in json_schema_fields(scheduler.connection_type)
        },
        "ui-field-behaviour": {"hidden-fields": [*UNUSED_FIELDS], "relabeling": {}, "placeholders": {}},
    }
