"""Command line for the Docker engine of the tests: `python -m tests.engines.docker status|start|images|clean|stop`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

import docker

from tests.engines.docker import cleanup, engine, images
from tests.engines.docker.daemon import EngineError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.docker", description=__doc__)
    commands = {
        "status": "show the engine that the tests would use",
        "start": "use the engine that answers, else install and start one of our own (root)",
        "images": "build the images of the tests, also the one of the example",
        "clean": "remove the containers, networks and volumes of all apps, whoever launched them",
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
    with contextlib.closing(docker.from_env(environment={**os.environ, "DOCKER_HOST": host})) as client:
        if command == "images":
            print(images.busybox(client), images.python(client), sep="\n")
        if command == "clean":
            print(*cleanup.remove_managed(client), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(str(error))
