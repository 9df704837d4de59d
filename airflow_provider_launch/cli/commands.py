"""The commands and their arguments, for the parser of `launch` and for that of Airflow; imports nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DESCRIPTION = "Launch apps on any scheduler and manage them, also those that Airflow has launched."
EPILOG = """\
exit codes: 0 done, 1 the app failed, 2 wrong usage, 3 unknown app, 4 scheduler not reached, 130 interrupted"""


@dataclass(frozen=True)
class Argument:
    """One argument of a command: its names, and the keywords of `ArgumentParser.add_argument`."""

    names: tuple[str, ...]
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command."""

    name: str
    help: str
    function: str
    """Its function as `module:name` in this package; it takes the options and the output, and returns an exit code."""
    arguments: tuple[Argument, ...]
    description: str = ""
    """Further sentences of the help."""


def _argument(*names: str, **keywords: Any) -> Argument:
    return Argument(names, keywords)


_COMMON = (
    _argument("--json", action="store_true", help="print JSON"),
    _argument("-v", "--verbose", action="store_true", help="show debug messages, and the traceback of an error"),
)
_SCHEDULER = _argument("-s", "--scheduler", metavar="NAME", help="the scheduler at its default location, e.g. local")
_CONNECTION = _argument("-c", "--connection", metavar="ID", help="the connection that names scheduler and location")
_WHERE = (_SCHEDULER, _CONNECTION)
_HANDLE = _argument("handle", metavar="HANDLE", help="the app, as scheduler://connection/app_id")
_HANDLES = _argument("handles", nargs="+", metavar="HANDLE", help="the apps, as scheduler://connection/app_id")
_OWNERS = (
    _argument("--dag", metavar="ID", help="only apps of tasks of this DAG"),
    _argument("--task", metavar="ID", help="only apps of this task"),
    _argument("--run", metavar="ID", help="only apps of this run"),
)

_ROWS = (
    Command(
        "run",
        "launch an app, and print its handle",
        "launch:run",
        (
            *_WHERE,
            _argument(
                "-cfg",
                "--cfg",
                "--scheduler_args",
                action="append",
                default=[],
                metavar="K=V[,K=V]",
                help="options of this launch; may be repeated",
            ),
            _argument("--dryrun", action="store_true", help="print the request, and launch nothing"),
            _argument("--wait", action="store_true", help="wait for the end; show each state"),
            _argument("--log", action="store_true", help="wait for the end; show the states and lines of all replicas"),
            _argument("--workspace", metavar="DIR", help="a directory to copy into the first role"),
            _argument("--parent_run_id", metavar="ID", help="the run that the app is a part of"),
            _argument("--app-id", metavar="ID", help="the id of the app; a second launch adopts the first app"),
            _argument("--key", metavar="TEXT", help="makes the id from the app's name and this text"),
            _argument(
                "words",
                nargs=argparse.REMAINDER,
                metavar="COMPONENT|FILE [--] ARGS",
                help="a component (utils.echo, my.py:app) with its arguments, or a YAML or JSON file with an app",
            ),
        ),
        "Options of this command come before the component; all that follows it are arguments of the component.",
    ),
    Command(
        "dryrun",
        "print the request that a task of a DAG would send",
        "from_airflow:dryrun",
        (
            _argument("-f", "--file", metavar="PATH", help="the DAG file; without it the DAGs folder is searched"),
            _argument("dag", metavar="DAG", help="id of the DAG"),
            _argument("task", metavar="TASK", help="id of the task"),
        ),
        "Templates stay as they are, because their values are known only in a run. Needs Airflow.",
    ),
    Command("status", "show the state of an app and of its replicas", "apps:status", (*_WHERE, _HANDLE)),
    Command(
        "describe",
        "show the app as it was launched",
        "apps:describe",
        (*_WHERE, _argument("--native", action="store_true", help="the request as the scheduler stores it"), _HANDLE),
    ),
    Command(
        "log",
        "print the lines of the replicas of an app",
        "log:log",
        (
            *_WHERE,
            _argument("-f", "--follow", action="store_true", help="follow the log until the app has ended"),
            _argument("--tail", type=int, metavar="N", help="only the last N lines of each replica"),
            _argument("--regex", metavar="RE", help="only lines that match somewhere"),
            _argument("--streams", choices=("stdout", "stderr", "combined"), help="the stream; default: all"),
            _argument(
                "handle",
                metavar="HANDLE[/ROLE[/K]]",
                help="the app, one of its roles, or replicas of it: /trainer/0, /trainer/0,3, /trainer/0-7",
            ),
        ),
    ),
    Command(
        "list",
        "list the apps of a scheduler",
        "apps:list_apps",
        (
            *_WHERE,
            *_OWNERS,
            _argument("--state", action="append", metavar="STATE", help="only apps in this state; may be repeated"),
        ),
    ),
    Command("cancel", "end apps; their logs and records stay", "apps:cancel", (*_WHERE, _HANDLES)),
    Command("delete", "remove apps with their logs; running ones are ended", "apps:delete", (*_WHERE, _HANDLES)),
    Command(
        "sweep",
        "delete the apps that ended some time ago, and print their handles",
        "apps:sweep",
        (
            *_WHERE,
            *_OWNERS,
            _argument("--older-than", required=True, metavar="TIME", help="time since the end: 90s, 30m, 12h, 7d"),
            _argument("--live", action="store_true", help="also end apps that were launched that long ago"),
        ),
    ),
    Command(
        "components",
        "list the components, or show one",
        "about:components",
        (
            _argument("--print", action="store_true", dest="source", help="print the source of a builtin component"),
            _argument("name", nargs="?", metavar="NAME", help="the component to show"),
        ),
    ),
    Command(
        "options",
        "show the options of a scheduler",
        "about:options",
        (_argument("scheduler", nargs="?", metavar="SCHEDULER", help="its name; default: all schedulers"),),
    ),
    Command(
        "connections",
        "list the connections that this shell has, or test them",
        "about:connections",
        (
            _argument(
                "--test",
                action="store_true",
                help="ask each scheduler; nothing is launched. Connections of Airflow's own types only by ID",
            ),
            _argument("ids", nargs="*", metavar="ID", help="only these; also those of Airflow"),
        ),
    ),
    Command(
        "configure",
        "write a configuration file with all options and their defaults",
        "about:configure",
        (
            _argument("-s", "--schedulers", metavar="NAME[,NAME]", help="only these schedulers"),
            _argument("-a", "--all", action="store_true", help="also options that are not required"),
            _argument("--print", action="store_true", dest="only_print", help="print it instead"),
        ),
    ),
)
COMMANDS: Mapping[str, Command] = {
    row.name: Command(row.name, row.help, row.function, (*_COMMON, *row.arguments), row.description) for row in _ROWS
}
"""Name to command, in the order of the help."""
