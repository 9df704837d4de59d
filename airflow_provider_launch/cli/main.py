"""Start of the command `launch`: parser, signals, and the exit code of each error."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_launch import __version__
from airflow_provider_launch.cli.commands import COMMANDS, DESCRIPTION, EPILOG

if TYPE_CHECKING:
    from airflow_provider_launch.cli.commands import Command

DONE, APP_FAILED, USAGE, UNKNOWN_APP, NOT_REACHED, FAULT, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130
"""The exit codes. `FAULT`: an error that this package does not expect."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of this process, and return its exit code.

    Raises:
        SystemExit: the arguments are wrong (2), or help was asked for (0).
    """
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    options = parser.parse_args(arguments)
    return run_command(COMMANDS[options.command], options)


def run_command(command: Command, options: argparse.Namespace) -> int:
    """Run one command and return its exit code; errors become one line on stderr."""
    from airflow_provider_launch.cli.output import Output

    output = Output(as_json=options.json)
    with _term_like_int(), output.messages(verbose=options.verbose):
        try:
            module, _, name = command.function.partition(":")
            code = getattr(importlib.import_module(f"{__package__}.{module}"), name)(options, output)
            output.flush()
        except KeyboardInterrupt:
            output.note("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            output.discard()
            return DONE
        except Exception as error:  # noqa: BLE001 - the exit code shows who must act
            code = _code_of(error)
            if code == FAULT or options.verbose:
                import traceback

                output.note(traceback.format_exc().rstrip())
            else:
                output.error(str(error))
            with contextlib.suppress(BrokenPipeError):
                output.flush()
        return int(code)


def _code_of(error: Exception) -> int:
    from airflow_provider_launch.specs import errors

    if isinstance(error, (errors.UnknownAppException, errors.UnknownOutcomeError)):
        return UNKNOWN_APP
    if isinstance(error, (errors.SchedulerUnavailableError, errors.SchedulerRejectedError)):
        return NOT_REACHED
    if isinstance(error, (errors.AppStatusError, errors.AppNotStartedError)):
        return APP_FAILED
    if isinstance(error, (errors.LaunchError, ValueError, FileNotFoundError, PermissionError)):
        return USAGE
    return FAULT


@contextlib.contextmanager
def _term_like_int() -> Iterator[None]:
    """Let TERM interrupt the command, so that it cleans up as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launch",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        added = commands.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[:1].upper()}{command.help[1:]}. {command.description}".rstrip(),
            allow_abbrev=False,
        )
        for argument in command.arguments:
            added.add_argument(*argument.names, **argument.keywords)
    return parser
