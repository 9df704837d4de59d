"""Cuts that only a reader of files has; the rest is in the contract."""

from __future__ import annotations

import json
import random
import sys

import pytest

from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.specs import AppState, Role
from tests.support.local import Apps


def test_a_cursor_loses_and_repeats_nothing_at_many_cuts(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read uses a scheduler like in another process, and a cursor that went through JSON."""
    monkeypatch.setattr(file_log, "CHUNK_BYTES", 300)  # many cuts in a small log, also with late reads
    program = (
        "import sys,time,random\n"
        "for i in range(4000):\n"
        "  (sys.stdout if i % 3 else sys.stderr).write(f'{i} ' + 'y' * random.randrange(60) + '\\n')\n"
        "  if i % 40 == 0: sys.stdout.flush(); time.sleep(.005)\n"
        "sys.stdout.write('4000 unfinished')"
    )
    app_id = apps.start(Role("main", "", entrypoint=sys.executable, args=["-c", program]))
    seen: list[int] = []
    cursor, reads, over = "null", 0, False
    while True:
        chunk = apps.another().read_logs(app_id, "main", 0, json.loads(cursor))
        reads += 1
        # A reader that dies before it stored the cursor reads the same lines again.
        if random.random() < 0.2:
            continue
        seen += [int(line.text.split()[0]) for line in chunk.lines]
        cursor = json.dumps(chunk.cursor)
        if over and not chunk.lines:
            break
        over = over or apps.another().describe(app_id).state is AppState.SUCCEEDED

    assert reads > 200
    assert sorted(seen) == list(range(4001))
    assert [n for n in seen if n % 3] == sorted(n for n in seen if n % 3)
