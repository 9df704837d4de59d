"""A script of the team: launches the component, and prints what it sees as JSON."""

from __future__ import annotations

import json
import sys
import unittest

from torchx.runner import get_runner
from torchx.runner.config import apply
from torchx.specs import named_resources

import acme.components
from acme.tracker import create


def main(root: str, runs: str) -> None:
    """Launch two apps; cancel the second one."""
    cfg: dict[str, object] = {"root": root}
    apply("acme", cfg)
    with get_runner() as runner:
        handle = runner.run_component("acme.train", ["--epochs", "3"], "acme", cfg)
        status = runner.wait(handle, wait_interval=0.1)
        logs = [list(runner.log_lines(handle, "trainer", k, should_tail=True)) for k in (0, 1)]
        matching = list(runner.log_lines(handle, "trainer", 1, regex="from"))
        waiting = runner.run_component("acme.wait", [], "acme", cfg)
        runner.cancel(waiting)
        ended = runner.wait(waiting, wait_interval=0.1)
        dryrun = runner.dryrun_component("acme.train", ["--epochs", "3"], "acme", cfg).request
    tests = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(acme.components).run(tests)
    tracker = create(runs)
    (run_id,) = tracker.run_ids()
    seen = {
        "handle": handle.rpartition("/")[0],
        "is the run": run_id == handle or handle.endswith(run_id),
        "state": status.state.name,
        "replicas": [replica.state.name for role in status.roles for replica in role.replicas],
        "cancelled": ended.state.name,
        "logs": logs,
        "matching": matching,
        "request": [(one["role"], one["k"], one["env"]["ROOM"]) for one in dryrun["replicas"]],
        "resource": named_resources["acme_small"].memMB,
        "tests": [tests.testsRun, *(text for _, text in (*tests.failures, *tests.errors))],
        "metadata": dict(tracker.metadata(run_id)),
        "artifacts": {name: (one.path, one.metadata) for name, one in tracker.artifacts(run_id).items()},
        "sources": [(one.source_run_id, one.artifact_name) for one in tracker.sources(run_id)],
    }
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
