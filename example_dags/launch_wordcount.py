"""Count the words of a text with several processes: mappers read, one reducer adds up. Standard library only.

    launch_wordcount.py reduce MAPPERS HOST_VARIABLE
    launch_wordcount.py map NUMBER MAPPERS HOST_VARIABLE TEXT_FILE

HOST_VARIABLE is the name of the environment variable that holds the reducer's host; LAUNCH_PORT_REDUCER_COUNTS holds
its port. The reducer writes its result as JSON to the path in LAUNCH_RESULT_PATH.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections import Counter
from pathlib import Path

CONNECT_WITHIN_S = 60


def reducer_address(host_variable: str) -> tuple[str, int]:
    """Return the address of the reducer, the same in every replica."""
    return os.environ[host_variable], int(os.environ["LAUNCH_PORT_REDUCER_COUNTS"])


def reduce_counts(mappers: int, host_variable: str) -> None:
    """Receive one count from each mapper, add them up and write the result."""
    total: Counter[str] = Counter()
    address = reducer_address(host_variable)
    with socket.create_server(address) as server:
        print(f"waiting for {mappers} mappers on {address[0]}:{address[1]}", flush=True)
        for received in range(1, mappers + 1):
            connection, _ = server.accept()
            with connection, connection.makefile(encoding="utf-8") as lines:
                message = json.load(lines)
            total.update(message["counts"])
            print(
                f"{received} of {mappers}: {sum(message['counts'].values())} words from mapper {message['mapper']}",
                flush=True,
            )
    result = {"words": sum(total.values()), "distinct": len(total), "top": dict(total.most_common(10))}
    Path(os.environ["LAUNCH_RESULT_PATH"]).write_text(json.dumps(result), encoding="utf-8")
    print(f"{result['words']} words, {result['distinct']} of them distinct", flush=True)


def map_share(number: int, mappers: int, host_variable: str, text_file: str) -> None:
    """Count every `mappers`-th line, from line `number` on, and send the count to the reducer."""
    share = Path(text_file).read_text(encoding="utf-8").splitlines()[number::mappers]
    print(f"mapper {number} of {mappers}: {len(share)} lines", flush=True)
    counts = Counter(word for line in share for word in re.findall(r"\w+", line.lower()))
    with connect(reducer_address(host_variable)) as connection:
        connection.sendall(json.dumps({"mapper": number, "counts": counts}).encode())
    print(f"sent {sum(counts.values())} words, most often {counts.most_common(1)[0][0]!r}", flush=True)


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to the reducer, which may start later than this mapper."""
    deadline = time.monotonic() + CONNECT_WITHIN_S
    while True:
        try:
            return socket.create_connection(address, timeout=10)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["reduce", mappers, host_variable]:
            reduce_counts(int(mappers), host_variable)
        case ["map", number, mappers, host_variable, text_file]:
            map_share(int(number), int(mappers), host_variable, text_file)
        case _:
            sys.exit(__doc__)
