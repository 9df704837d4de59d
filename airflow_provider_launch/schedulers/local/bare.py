"""Entry point of the supervisor: `python -I -S bare.py <app directory>`.

A bare interpreter without site packages starts in 15 ms and needs 6 MB. The parent packages of the supervisor are
created here as empty modules, so that their `__init__`, and with it the whole launcher, is not loaded.
"""

from __future__ import annotations

import os
import sys
import types


def main(app_dir: str) -> None:
    """Become the supervisor of one app."""
    path = os.path.dirname(os.path.abspath(__file__))
    names = ["airflow_provider_launch", "schedulers", "local"]
    for depth in range(len(names), 0, -1):
        package = types.ModuleType(".".join(names[:depth]))
        package.__path__ = [path]
        sys.modules[package.__name__] = package
        path = os.path.dirname(path)
    from airflow_provider_launch.schedulers.local import supervisor

    supervisor.main(app_dir)


if __name__ == "__main__":
    main(sys.argv[1])
