"""Every line once, in order, whatever is cut."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.api import Stream
from airflow_provider_launch.schedulers.local import log_files
from airflow_provider_launch.specs import AppState, RetryPolicy, Role, UnknownAppException
from tests.support.local import Apps, sh, until


def python(program: str, **fields: object) -> Role:
    return Role("main", "", entrypoint=sys.executable, args=["-c", program], **fields)  # type: ignore[arg-type]


def test_streams_are_kept_apart_and_combined(apps: Apps) -> None:
    app_id = apps.start(sh("echo out; echo err >&2; printf last"))
    apps.end(app_id)

    assert apps.lines(app_id, streams=Stream.STDOUT) == ["out\n", "last"]
    assert apps.lines(app_id, streams=Stream.STDERR) == ["err\n"]
    assert sorted(apps.lines(app_id)) == ["err\n", "last", "out\n"]
    assert sorted(apps.lines(app_id, streams=Stream.COMBINED)) == ["err\n", "last", "out\n"]


def test_regex_keeps_matching_lines(apps: Apps) -> None:
    app_id = apps.start(sh("echo loss=1; echo noise; echo loss=2"))
    apps.end(app_id)

    assert apps.lines(app_id, regex="loss=.") == ["loss=1\n", "loss=2\n"]


def test_since_warns_that_it_is_not_honoured(apps: Apps) -> None:
    from datetime import datetime

    app_id = apps.start(sh("echo x"))
    apps.end(app_id)
    with pytest.warns(UserWarning, match="not honoured"):
        assert apps.lines(app_id, since=datetime(2020, 1, 1)) == ["x\n"]  # noqa: DTZ001 - naive means UTC


def test_unknown_app_role_and_replica_are_told_at_the_call(apps: Apps) -> None:
    app_id = apps.start(sh("true"))
    with pytest.raises(UnknownAppException):
        apps.scheduler.log_iter("unknown", "main")
    with pytest.raises(ValueError, match="no role 'mian'; the app has main"):
        apps.scheduler.log_iter(app_id, "mian")
    with pytest.raises(ValueError, match="has no replica 1; it has 0 to 0"):
        apps.scheduler.log_iter(app_id, "main", 1)


def test_odd_output_is_complete(apps: Apps) -> None:
    program = (
        "import sys; w=sys.stdout.buffer.write\n"
        "w(b'x' * 1_000_000 + b'\\n'); w(b'50%\\r100%\\n'); w('日本\\n'.encode()); w(b'\\xff\\xfe\\n')\n"
        "w(b'\\n'); w(b'end')"
    )
    app_id = apps.start(python(program))
    apps.end(app_id)

    assert apps.lines(app_id) == ["x" * 1_000_000 + "\n", "50%\r100%\n", "日本\n", "\ufffd\ufffd\n", "\n", "end"]


def test_an_unfinished_line_comes_whole_once_it_is_finished(apps: Apps, tmp_path: Path) -> None:
    app_id = apps.start(sh(f"printf half; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo ' and half'"))
    until(lambda: (log := next(apps.dir(app_id).rglob("stdout"), None)) and log.stat().st_size == 4)

    assert apps.lines(app_id) == []
    (tmp_path / "go").touch()
    assert list(apps.scheduler.log_iter(app_id, "main", should_tail=True)) == ["half and half\n"]


def test_lines_of_all_attempts_follow_each_other(apps: Apps) -> None:
    app_id = apps.start(sh("echo $LAUNCH_ATTEMPT; exit 1", max_retries=2, retry_policy=RetryPolicy.REPLICA))
    apps.end(app_id)
    chunks, cursor = [], None
    while (chunk := apps.scheduler.read_logs(app_id, "main", 0, cursor)).lines:
        chunks += [(line.text, line.attempt) for line in chunk.lines]
        cursor = chunk.cursor

    assert chunks == [("0\n", 0), ("1\n", 1), ("2\n", 2)]


def test_tail_follows_to_the_end(apps: Apps) -> None:
    app_id = apps.start(sh("for i in 1 2 3; do echo $i; sleep 0.2; done"))

    assert list(apps.scheduler.log_iter(app_id, "main", should_tail=True)) == ["1\n", "2\n", "3\n"]


def test_a_cursor_loses_and_repeats_nothing_at_200_cuts(apps: Apps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read is done by a scheduler as another process has it, from a cursor that went through JSON."""
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 700)  # many cuts in a small log
    program = (
        "import sys,time,random\n"
        "for i in range(4000):\n"
        "  (sys.stdout if i % 3 else sys.stderr).write(f'{i} ' + 'y' * random.randrange(60) + '\\n')\n"
        "  if i % 40 == 0: sys.stdout.flush(); time.sleep(.005)\n"
        "  if i == 2000: pass\n"
        "sys.stdout.write('4000 unfinished')"
    )
    app_id = apps.start(python(program))
    seen: list[int] = []
    cursor, reads, over = "null", 0, False
    while True:
        chunk = apps.another().read_logs(app_id, "main", 0, json.loads(cursor))
        reads += 1
        # A reader that dies after the read and before it stored the cursor reads the same again.
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


def test_many_lines_on_both_streams_at_once(apps: Apps) -> None:
    app_id = apps.start(sh("(seq 1 50000) & (seq 1 50000 >&2) & wait"))
    apps.end(app_id)

    for stream in (Stream.STDOUT, Stream.STDERR):
        assert apps.lines(app_id, streams=stream) == [f"{n}\n" for n in range(1, 50001)]
