"""Entry point of the supervisor: `python -I -S bare.py <app directory>`, or `bare.py run <app directory>` in a job.

A bare interpreter without site packages starts in 15 ms and needs 6 MB. The parent packages of the supervisor are
created here as empty modules, so that their `__init__`, and with it the whole launcher, is not loaded.
"""

from __future__ import annotations

import os
import sys
import types

RUN, RUN_AND_KEEP = "run", "run-and-keep"
"""Modes in a job: a deleted app is removed at its end, or kept until an observer has removed its job too."""


def main(app_dir: str, mode: str = "") -> None:
    """Become the supervisor of one app: in this process, which is a job of a queue, or without `mode` in another."""
    path = os.path.dirname(os.path.abspath(__file__))
    names = ["airflow_provider_launch", "schedulers", "local"]
    for depth in range(len(names), 0, -1):
        package = types.ModuleType(".".join(names[:depth]))
        package.__path__ = [path]
        sys.modules[package.__name__] = package
        path = os.path.dirname(path)
    from airflow_provider_launch.schedulers.local import supervisor

    if mode:
        supervisor.run_job(app_dir, keeps_deleted=mode == RUN_AND_KEEP)
    else:
        supervisor.main(app_dir)


if __name__ == "__main__":
    main(sys.argv[-1], *sys.argv[1:-1])
