"""Task spooler (Debian's `task-spooler`), a queue of one host, for the plug-ins of queues."""

from __future__ import annotations

import shutil

from tests.engines.docker.packages import install

_PROGRAM = "tsp"


def install_task_spooler() -> None:
    """Install the program; root only."""
    install(**{_PROGRAM: "task-spooler"})


def missing_task_spooler() -> str | None:
    """Return the reason why there is no task spooler, or None."""
    if shutil.which(_PROGRAM):
        return None
    return f"{_PROGRAM} is not installed; LAUNCH_REQUIRE_ENGINES=task-spooler installs it, as root on Debian"
