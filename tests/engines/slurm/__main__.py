"""Command line for the Slurm cluster of the tests: `python -m tests.engines.slurm status|start|stop`."""

from __future__ import annotations

import argparse
import sys

from tests.engines.docker.daemon import EngineError
from tests.engines.slurm import engine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.slurm", description=__doc__)
    commands = {
        "status": "show how to reach the cluster of the tests",
        "start": "install what is missing and start the cluster (root, Debian)",
        "stop": "stop it, and remove its data",
    }
    parser.add_argument(
        "command", choices=commands, help="; ".join(f"{name}: {what}" for name, what in commands.items())
    )
    command = parser.parse_args().command
    if command == "stop":
        print("stopped" if engine.stop() else "none of ours runs")
        return
    use = engine.Use()
    use.begin(start=command == "start", keep=command == "start")
    print(f"SLURM_CONF={engine.OURS.conf}")
    sshd = engine.OURS.sshd
    print(f"ssh: root@127.0.0.1:{sshd.port}, key {sshd.key}, host key {sshd.host_key}")


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(str(error))
