"""The Docker engine of the tests by hand: `python -m tests.engines.docker start|stop|images|status`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

import docker

from tests.engines.docker import engine, images
from tests.engines.docker.daemon import EngineError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.docker", description=__doc__)
    commands = {
        "status": "say which engine the tests would use",
        "start": "use the engine that answers, else install and start one of our own (root)",
        "images": "build the images of the tests, also the one of the example",
        "stop": "stop the engine that start has started, and remove its data",
    }
    parser.add_argument(
        "command", choices=commands, help="; ".join(f"{name}: {what}" for name, what in commands.items())
    )
    command = parser.parse_args().command
    if command == "stop":
        print("stopped" if engine.stop() else "none of ours runs")
        return
    host = engine.Use().begin(start=command == "start", keep=command == "start")
    print(f"DOCKER_HOST={host}")
    if command == "images":
        with contextlib.closing(docker.from_env(environment={**os.environ, "DOCKER_HOST": host})) as client:
            for build in (images.busybox, images.python):
                print(build(client))


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(str(error))
