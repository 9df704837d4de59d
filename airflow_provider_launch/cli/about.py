"""The commands about this installation: components, options, connections, configure."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_launch.cli.output import Output
    from airflow_provider_launch.connections.definition import Definition
    from airflow_provider_launch.specs.runopts import runopts


def components(options: argparse.Namespace, output: Output) -> int:
    """List the components, or show the usage or the source of one."""
    from airflow_provider_launch.specs import finder

    if options.name is None:
        if options.source:
            raise InvalidAppError("--print needs the name of a component")
        found = finder.get_components().values()
        output.table([{"component": each.name, "description": _first_line(each.description)} for each in found])
        return 0
    if options.source:
        source = finder.get_builtin_source(options.name)
        output.document({"component": options.name, "source": source}) if output.as_json else output.data(source)
        return 0
    from airflow_provider_launch.specs.builders import build_app
    from airflow_provider_launch.specs.component_args import ComponentUsageError

    component = finder.get_component(options.name)
    try:
        build_app(component.fn, ["--help"])
    except ComponentUsageError as error:
        usage = str(error).rstrip()
        output.document({"component": options.name, "usage": usage}) if output.as_json else output.data(usage)
    return 0


def options(options: argparse.Namespace, output: Output) -> int:
    """Show the options of launches on a scheduler, and those of its connections."""
    names = [options.scheduler] if options.scheduler else list(_schedulers())
    shown: dict[str, Any] = {}
    for name in names:
        for where, schema in _schemas(name).items():
            if output.as_json:
                shown.setdefault(name, {})[where] = [*_rows(schema)]
            else:
                output.data(f"{name}, {_WHERE[where]}:\n{schema!r}\n")
    if output.as_json:
        output.document(shown)
    return 0


_WHERE = {"connection": "options of a connection", "launch": "options of a launch (-cfg), or of a connection"}


def _schedulers() -> Iterator[str]:
    from airflow_provider_launch.schedulers import SCHEDULER_ALIASES, get_scheduler_factories

    return (name for name in get_scheduler_factories() if name not in SCHEDULER_ALIASES)


def _schemas(name: str) -> dict[str, runopts]:
    """Return the options of a scheduler; those of a built-in one need no client library."""
    from airflow_provider_launch.runner import Runner
    from airflow_provider_launch.schedulers.backends import BACKENDS

    if (info := BACKENDS.get(name)) is not None:
        return {
            "connection": info.connection_options().as_runopts(),
            "launch": info.launch_options().as_runopts(),
        }
    with Runner() as runner:
        return {"launch": runner.scheduler_run_opts(name)}


def _rows(schema: runopts) -> Iterator[dict[str, Any]]:
    from airflow_provider_launch.util.types import get_type_name

    for name, option in schema:
        yield {
            "name": name,
            "type": get_type_name(option.opt_type),
            "default": option.default,
            "required": option.is_required,
            "help": option.help,
        }


def connections(options: argparse.Namespace, output: Output) -> int:
    """List connections, or test them; the exit code is 1 if a test failed."""
    from airflow_provider_launch.connections.airflow_types import AIRFLOW_TYPES
    from airflow_provider_launch.connections.extras import plugin_types
    from airflow_provider_launch.connections.sources import definitions

    rows: list[dict[str, Any]] = []
    failed = False
    types = plugin_types()
    for definition in [_defined(conn_id) for conn_id in options.ids] or definitions():
        conn_type = definition.conn_type.replace("-", "_")
        # A connection of such a type may belong to another system, as a host of files does.
        is_of_airflow = conn_type in AIRFLOW_TYPES and not options.ids
        # Also misspelt types: a connection that is missing in the list explains nothing.
        if not (options.ids or is_of_airflow or conn_type.startswith("launch") or conn_type in types):
            continue
        row, error = _connection_row(definition, test=options.test and not is_of_airflow)
        if error is not None and is_of_airflow:
            continue
        failed = failed or error is not None
        rows.append(row)
    output.table(rows)
    if not rows:
        output.note("this shell has no connection: set AIRFLOW_CONN_<ID>, or name one of Airflow")
    return int(failed)


def _connection_row(definition: Definition, *, test: bool) -> tuple[dict[str, Any], Exception | None]:
    """Return the row of a connection, and the error if it cannot be used."""
    from airflow_provider_launch.cli.targets import opened
    from airflow_provider_launch.connections.probes import probe

    connection = opened(definition)
    row = {"connection": definition.conn_id, "type": definition.conn_type.replace("-", "_"), "where": None}
    row |= {"source": definition.source, "result": "not tested"}
    try:
        connection.backend  # noqa: B018 - refuses other types
        row["where"] = connection.options.identity
        if test:
            row["result"] = probe(connection)
    except Exception as error:  # noqa: BLE001 - each connection has its own result
        row["result"] = f"error: {error}"
        return row, error
    finally:
        connection.close()
    return row, None


def _defined(conn_id: str) -> Definition:
    from airflow_provider_launch.cli.targets import connection_of, definition_of

    found = definition_of(conn_id)
    if found is None:
        connection_of(conn_id)  # raises, with the places where it was searched
    assert found is not None
    return found


def configure(options: argparse.Namespace, output: Output) -> int:
    """Write `.launchconfig` into the current directory."""
    from airflow_provider_launch.runner import config

    text = io.StringIO()
    names = options.schedulers.split(",") if options.schedulers else list(_schedulers())
    config.dump(text, names, required_only=not options.all)
    if options.only_print:
        shown = text.getvalue().rstrip()
        output.document({"path": None, "text": shown}) if output.as_json else output.data(shown)
        return 0
    path = Path(config.CONFIG_FILE)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.getvalue())
    except FileExistsError:
        raise InvalidAppError(f"{path.absolute()} exists; remove it, or add --print") from None
    if output.as_json:
        output.document({"path": str(path.absolute())})
    else:
        output.data(str(path.absolute()))
    return 0


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
