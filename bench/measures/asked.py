"""Counts requests to an engine while apps are followed, by a proxy in front of it: rows for ours and the peer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows import row
from tests.faults import FaultProxy

HERE = Path(__file__).parent
WATCHED, ONE_TASK = HERE / "watched.py", HERE / "one_task.py"
SECONDS = 15.0
_PEER_S, _SETTLE_S = 120.0, 20.0
"""Seconds until tasks of the peer have reached the engine, and then until they follow."""


@dataclass
class Seen:
    """Requests in a minute, and measurements of the process."""

    requests: float
    """Requests per minute."""
    states: float
    """Requests for states among them."""
    connections: int
    """Connections open at the same time."""
    figures: dict[str, Any] = field(default_factory=dict)


class Counter:
    """Counts at a proxy.

    Args:
        proxy: in front of the engine.
        states: what the paths of requests for states end with.
    """

    def __init__(self, proxy: FaultProxy, states: str) -> None:
        self._proxy = proxy
        self._states = states

    def counts(self) -> tuple[int, int]:
        """Return the number of requests, and of those for states."""
        return self._proxy.count(), self._proxy.count(path=self._states)

    def between(self, seconds: float, before: tuple[int, int], connections: int, **figures: Any) -> Seen:
        """Return the requests since `before`, with its age in seconds and the number of open connections."""
        after = self.counts()
        total, states = (60 * (b - a) / seconds for a, b in zip(before, after, strict=True))
        return Seen(total, states, connections, figures)

    def watch(
        self, mode: str, backend: str, params: dict[str, Any], apps: Sequence[str], settle_s: float, seconds: float
    ) -> Seen:
        """Follow the apps in a separate process."""
        spec = {"mode": mode, "backend": backend, "params": params, "apps": [*apps]}
        command = [sys.executable, str(WATCHED), json.dumps(spec | {"settle_s": settle_s, "seconds": seconds})]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            started, before, connections, seen = 0.0, (0, 0), 0, None
            for line in process.stdout:
                if line.startswith("READY"):
                    started, before, connections = time.monotonic(), self.counts(), self._proxy.connections()
                elif line.startswith("SEEN "):
                    seen = self.between(time.monotonic() - started, before, connections, **json.loads(line[5:]))
        if seen is None:
            raise RuntimeError(f"{mode} on {backend}: nothing was seen, exit code {process.returncode}")
        return seen

    def peer(self, python: str, side: str, script: str, count: int, **env: str) -> Seen:
        """Run tasks of a peer, each in its own process, and count requests while they run."""
        command = [python, str(ONE_TASK), side, "1", script]
        with ExitStack() as stack:
            for _ in range(count):
                process = subprocess.Popen(command, env=os.environ | env, stdout=subprocess.DEVNULL)
                stack.callback(process.wait)
                stack.callback(process.terminate)
            deadline = time.monotonic() + _PEER_S
            while self._proxy.connections() < count and time.monotonic() < deadline:
                time.sleep(1)
            time.sleep(_SETTLE_S)
            before, connections = self.counts(), self._proxy.connections()
            time.sleep(SECONDS)
            return self.between(SECONDS, before, connections)


def show(what: str, seen: Seen, *, goal: float | None, peer: float | None = None, replicas: int = 0, by: str) -> None:
    """Print the rows of one case.

    Args:
        what: the case.
        seen: what was seen.
        goal: requests a minute in addition to those for states. None: none.
        peer: requests a minute of the peer.
        replicas: which are followed: their number bounds the open connections. 0: no row of connections.
        by: who follows.
    """
    note = f"{by}; {seen.states:.0f} for states"
    limit = None if goal is None else goal + seen.states
    row(f"{what}: requests", seen.requests, "/min", limit=limit, peer=peer, note=note)
    if replicas:
        row(f"{what}: open connections", seen.connections, "", limit=replicas + 10, note=by)
    if "late_p99" in seen.figures:
        row(f"{what}: line written to shown, p99", seen.figures["late_p99"], limit=0.3, note=by)
    if "lag_p99" in seen.figures:
        row(f"{what}: lag of the loop, p99", 1000 * seen.figures["lag_p99"], "ms", limit=50, note=by)
