"""`launch run`: launch an app, and follow it if that is asked for."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.cli.apps import status_document
from airflow_provider_launch.cli.commands import COMMANDS
from airflow_provider_launch.cli.targets import Target, cli_defaults, for_launch
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.util.documents import read_document

if TYPE_CHECKING:
    from airflow_provider_launch.cli.output import Output
    from airflow_provider_launch.schedulers.api import DescribeAppResponse
    from airflow_provider_launch.specs.roles import AppDef

_APP_FILES = (".yaml", ".yml", ".json")
_ON_THIS_HOST = ("local", "local_cwd")
"""Schedulers whose apps end with a command that follows them and is interrupted, as a program in the foreground."""


def run(options: argparse.Namespace, output: Output) -> int:
    """Launch an app, print its handle, and follow it with `--wait` or `--log`."""
    defaults = cli_defaults()
    name, arguments = _split(options.words, defaults.get("component"))
    with for_launch(options.scheduler, options.connection) as target:
        app = _app(name, arguments, target, output)
        if app is None:
            return 0
        if target.connection is not None:
            target.connection.refuse_overlays(app)
        info = target.runner.dryrun(
            app,
            target.backend,
            target.options(options.cfg),
            _workspace(options.workspace or defaults.get("workspace")),
            options.parent_run_id,
            app_id=options.app_id,
            idempotency_key=options.key,
        )
        if options.dryrun:
            _show_request(info, target, output)
            return 0
        for text in info.warnings:
            output.note(f"warning: {text}")
        handle = target.runner.schedule(info)
        if not output.as_json or options.wait or options.log:
            # Now, so that a script has it also if this command is interrupted.
            output.row({"handle": handle}) if output.as_json else output.data(handle)
            output.flush()
        if options.wait or options.log:
            return _follow(target, handle, output, logs=options.log)
        if output.as_json:
            output.row({"handle": handle})
        return 0


def _follow(target: Target, handle: str, output: Output, *, logs: bool) -> int:
    from airflow_provider_launch.cli.follow import follow

    try:
        response = follow(target.scheduler, handle, output, logs=logs, is_new=True)
    except KeyboardInterrupt:
        if target.backend not in _ON_THIS_HOST:
            output.note(f"the app continues; cancel it with: launch cancel {handle}")
            raise
        output.note("the app is cancelled")
        target.runner.cancel(handle)
        raise
    if output.as_json:
        output.row(status_document(handle, response))
    return outcome(response, output)


def outcome(response: DescribeAppResponse, output: Output) -> int:
    """Return the exit code for the end of an app, and show why it failed."""
    from airflow_provider_launch.specs.errors import AppStatusError

    if response.state is AppState.SUCCEEDED:
        return 0
    try:
        response.to_status().raise_for_status()
    except AppStatusError as error:
        output.error(str(error))
    return 1


def _show_request(info: Any, target: Target, output: Output) -> None:
    text = str(info)
    if output.as_json:
        output.document({"scheduler": target.backend, "cfg": dict(info.cfg), "request": text})
    else:
        output.data(text)


# ---- the app -------------------------------------------------------------------------------------------------------


def _split(words: Sequence[str], default: str | None) -> tuple[str, list[str]]:
    """Return the component and its arguments; words that begin with an option are for the default component."""
    rest = list(words)
    if rest and not rest[0].startswith("-"):
        name = rest.pop(0)
    elif default:
        name = default
    else:
        raise InvalidAppError(
            "name a component, or a file with an app: launch run -s local utils.echo --msg hello; `launch components` "
            "lists them, and `component` in section cli:run of .launchconfig is the default"
        )
    return name, rest[1:] if rest[:1] == ["--"] else rest


def _app(name: str, arguments: list[str], target: Target, output: Output) -> AppDef | None:
    """Return the app of a component or a file; None if the help of the component was shown."""
    if name.endswith(_APP_FILES):
        return _app_of_file(Path(name), arguments)
    from airflow_provider_launch.specs.builders import build_app
    from airflow_provider_launch.specs.component_args import ComponentUsageError
    from airflow_provider_launch.specs.finder import get_component

    component = get_component(name)
    try:
        return build_app(component.fn, arguments, target.component_defaults(name))
    except ComponentUsageError as error:
        # `-h` may be an argument of the component; if it is none, it asks for help, too.
        if not error.is_help and "-h" in arguments:
            return _app(name, ["--help"], target, output)
        if error.is_help:
            output.data(str(error).rstrip())
            return None
        if ours := _our_options(arguments):
            raise InvalidAppError(
                f"{error}\n{ours[0]} is an option of `launch run`; did you mean it before {name}?"
            ) from None
        raise


def _our_options(arguments: Sequence[str]) -> list[str]:
    ours = {name for argument in COMMANDS["run"].arguments for name in argument.names if name.startswith("-")}
    return [word for word in arguments if word.partition("=")[0] in ours]


def _app_of_file(path: Path, arguments: Sequence[str]) -> AppDef:
    from airflow_provider_launch.specs.app_dict import app_from_dict

    if arguments:
        raise InvalidAppError(f"{path} describes an app, which takes no arguments; given: {' '.join(arguments)}")
    try:
        found = read_document(path)
    except (OSError, ValueError) as error:
        raise InvalidAppError(f"the app in {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InvalidAppError(f"{path} must have the fields of an app, name and roles; docs/app.md lists them")
    return copy.deepcopy(app_from_dict(found))


def _workspace(text: str | None) -> str | None:
    """Return the workspace; a path of this directory is made absolute, as the app may start in another one."""
    if not text or ":" in text or "\n" in text:
        return text
    return str(Path(text).expanduser().absolute())
