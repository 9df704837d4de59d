"""Command line for the test cluster: `python -m tests.engines.kubernetes start|stop|status`, and more."""

from __future__ import annotations

import argparse
import sys

from tests.engines.docker.daemon import EngineError
from tests.engines.kubernetes import engine, programs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.kubernetes", description=__doc__)
    commands = {
        "status": "say which cluster the tests would use",
        "start": "use the cluster that is given or runs, else build, install and start one of our own (root)",
        "build": "build the programs of our own cluster, or of the module that is named, without starting it",
        "images": "give our own cluster the images of the tests, also the one of the example",
        "queue": "the same, and Kueue with the queue of the example launch_kubernetes_gang",
        "clean": "delete the namespaces that killed tests left",
        "stop": "stop the cluster that start has started, and remove its data",
    }
    told = "; ".join(f"{name}: {what}" for name, what in commands.items())
    parser.add_argument("command", choices=commands, help=told)
    modules = {module.name: module for module in [*programs.MODULES, programs.KUEUE]}
    parser.add_argument("module", nargs="?", choices=modules, help="of build: only this one")
    given = parser.parse_args()
    command = given.command
    if command == "build":
        programs.build(modules=[modules[given.module]] if given.module else [*modules.values()])
        print(*programs.paths().values(), sep="\n")
        return
    if command == "stop":
        print("stopped" if engine.stop() else "none of ours runs")
        return
    kubeconfig = engine.Use().begin(start=command == "start", keep=command == "start")
    print(f"KUBECONFIG={kubeconfig}")
    if command in {"images", "queue"}:
        from tests.engines.kubernetes import images

        if kubeconfig != engine.ours().kubeconfig:
            raise EngineError("images can only be loaded into our own cluster; see CONTRIBUTING.md")
        print(images.busybox(engine.ours()), images.python(engine.ours()), sep="\n")
    if command == "queue":
        from tests.engines.kubernetes import queues

        engine.start_kueue()
        print(queues.of_the_example(kubeconfig))
    if command == "clean":
        from tests.engines.kubernetes import namespaces

        print(*namespaces.remove_all(kubeconfig), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(str(error))
