"""The commands as `airflow launch …`, in Airflow 3.2 and newer, which imports this module for all its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.cli.commands import COMMANDS, DESCRIPTION, EPILOG

if TYPE_CHECKING:
    from airflow_provider_launch.cli.commands import Command


def get_launch_commands() -> list[Any]:
    """Return the group of commands for Airflow's parser."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    def args_of(command: Command) -> list[Any]:
        make: Any = Arg  # it has no types
        return [make(flags=argument.names, **argument.keywords) for argument in command.arguments]

    commands = [
        ActionCommand(
            name=command.name,
            help=command.help,
            description=command.description or None,
            func=_runs(command),
            args=args_of(command),
        )
        for command in COMMANDS.values()
    ]
    return [GroupCommand(name="launch", help=DESCRIPTION, subcommands=commands, epilog=EPILOG)]


def _runs(command: Command) -> Callable[[argparse.Namespace], None]:
    return partial(_run, command)


def _run(command: Command, options: argparse.Namespace) -> None:
    from airflow_provider_launch.cli.main import run_command

    sys.exit(run_command(command, options))
