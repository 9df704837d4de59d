"""Command line for newer engines: `python -m tests.engines.releases make|enter|remove RELEASE [COMMAND ...]`."""

from __future__ import annotations

import argparse
import sys

from tests.engines.docker.daemon import EngineError
from tests.engines.releases import roots


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.releases", description=__doc__)
    commands = {
        "make": "make the root directory of the release, unless there is one (root, Debian; minutes)",
        "enter": "run a command in it, with the checkout and the Python of the host",
        "remove": "remove it",
    }
    parser.add_argument(
        "command", choices=commands, help="; ".join(f"{name}: {what}" for name, what in commands.items())
    )
    parser.add_argument("release", choices=roots.RELEASES)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="the command to run")
    given = parser.parse_args()
    if given.command == "enter":
        return roots.enter(given.release, given.rest or ["sh"])
    if given.command == "remove":
        print("removed" if roots.remove(given.release) else "there is none")
        return 0
    print(roots.make(given.release))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EngineError as error:
        sys.exit(str(error))
