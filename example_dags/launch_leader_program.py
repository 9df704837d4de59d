"""The program of `launch_kubernetes_leader`: a head that distributes work, and workers.

Workers ask for work for ever; only the head knows when all work is done.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

PIECES = 40
STEPS = 50_000


def area(piece: int) -> float:
    """Return a piece of the area below 4 / (1 + x^2), from 0 to 1; the sum of all pieces is pi."""
    width = 1 / (PIECES * STEPS)
    middles = ((piece * STEPS + step + 0.5) * width for step in range(STEPS))
    return sum(4 / (1 + x * x) for x in middles) * width


def head(port: int) -> None:
    """Distribute pieces until all results are in, and write their sum as the result."""
    todo, areas, by_worker = set(range(PIECES)), {}, {}
    with socket.create_server(("", port)) as server:
        while todo:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as stream:
                worker, done, found = json.loads(stream.readline())
                if done in todo:
                    todo.discard(done)
                    areas[done] = found
                    by_worker[worker] = by_worker.get(worker, 0) + 1
                # A piece may be sent twice if its worker was lost; the first answer counts.
                stream.write(f"{next_piece(todo, worker)}\n")
    print(f"all {PIECES} pieces are back: {by_worker}", flush=True)
    result = {"pi": round(sum(areas.values()), 9), "workers": len(by_worker)}
    Path(os.environ["LAUNCH_RESULT_PATH"]).write_text(json.dumps(result), encoding="utf-8")


def next_piece(todo: set[int], worker: int) -> int:
    """Return an unfinished piece, a different one for each worker while there are enough."""
    left = sorted(todo)
    return left[worker * 7 % len(left)] if left else -1


def work(host: str, port: int, worker: int) -> None:
    """Process pieces for ever; retry while the head is unreachable."""
    done, found = -1, 0.0
    while True:
        try:
            with socket.create_connection((host, port), timeout=30) as connection, connection.makefile("rw") as stream:
                stream.write(json.dumps([worker, done, found]) + "\n")
                stream.flush()
                piece = int(stream.readline() or -1)
        except OSError:
            piece = -1
        if piece < 0:
            time.sleep(0.5)
            continue
        done, found = piece, area(piece)
        print(f"piece {piece} is done", flush=True)


if __name__ == "__main__":
    number = int(os.environ["LAUNCH_PORT_HEAD_WORK"])
    if sys.argv[1] == "head":
        head(number)
    else:
        work(os.environ[sys.argv[2]], number, int(os.environ["LAUNCH_REPLICA_ID"]))
