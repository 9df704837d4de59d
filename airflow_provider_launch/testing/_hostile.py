"""Hostile and broken programs: the output of one app never disturbs the followers of other apps."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.follow.events import Ended, Event, LogLines
from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, Scheduler
from airflow_provider_launch.specs.errors import LaunchError, SchedulerUnavailableError, is_outage
from airflow_provider_launch.specs.roles import MAX_REPLICAS
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.testing._base import Apps, ContractBase, within
from airflow_provider_launch.testing.engine import Engine
from airflow_provider_launch.util.untrusted import MOST_CHARS, clean_json

_MB = 1024 * 1024
_LONGEST_LINE = 17 * _MB
"""Longer lines are cut at 16 MB and marked."""
_MEMORY = 400 * _MB
"""Memory limit for all reads; the sparse file is twice as large."""
_SECRET = "secret-of-the-host"  # noqa: S105 - a text to be found
_POLL_S = 0.2
_WRITER = "i=0; while [ $i -lt 200 ]; do i=$((i + 1)); echo $i; sleep 0.01; done"
_WRITTEN = [f"{i}\n" for i in range(1, 201)]
_FILES = {
    "directory": 'mkdir "$f"',
    "fifo": 'mkfifo "$f"',
    "link": 'ln -s SECRET "$f"',
    "sparse": 'dd of="$f" bs=1 count=0 seek=900000000 2>/dev/null',
}
_PRINTED = {
    "nul": r"printf 'a\000b\n'",
    "no UTF-8": r"printf '\377\376\n'",
    "no end": r"head -c ENDLESS /dev/zero | tr '\000' x",
    "many": "seq 100000",
}
_DOCUMENTS = {
    "nul": r"""printf '["\\u0000"]' > "$f" """,
    "raw nul": r"""printf '["\000"]' > "$f" """,
    "surrogate": r"""printf '["\\ud800"]' > "$f" """,
    "reserved": r"""printf '{"__classname__": "x"}' > "$f" """,
    "deep": r"""head -c 4000 /dev/zero | tr '\000' '[' > "$f" """,
    "digits": r"""head -c 4000 /dev/zero | tr '\000' 9 > "$f" """,
    "huge": r"""head -c 20000000 /dev/zero | tr '\000' 9 > "$f" """,
}


_TEXTS = {"raw nul"}
"""Engines that return text may drop the byte, and the rest is a valid document."""


class _Memory:
    """Measures the largest growth of this process."""

    def __init__(self) -> None:
        self._first = self.most = _resident()
        self._over = threading.Event()

    @property
    def grown(self) -> int:
        return self.most - self._first

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        thread = threading.Thread(target=self._observe, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _observe(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, _resident())


def _resident() -> int:
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class HostileTests(ContractBase):
    """Followers of a hostile app and of a normal app."""

    def test_apps_that_damage_their_files_harm_no_other(self, apps: Apps, tmp_path: Path) -> None:
        """A program that replaces its error file, or writes binary data, must not fail all tasks of the connection."""
        acts = [*_FILES.values(), *_DOCUMENTS.values()]
        printed = [text.replace("ENDLESS", str(self.endless)) for text in _PRINTED.values()]
        pairs = [*zip(acts, printed, strict=False), *((act, "true") for act in acts[len(printed) :: 3])]
        hostile = [
            apps.start(apps.sh(_script("TORCHELASTIC_ERROR_FILE", act, text, tmp_path, 3))) for act, text in pairs
        ]
        ends = self._ends_next_to_a_bystander(apps, hostile)

        for app_id, found in ends.items():
            assert found.state is AppState.FAILED, f"{app_id}: {found}"
            status = found.to_status().to_json()
            assert clean_json(status) == status, f"characters that databases refuse: {str(status)[:1000]!r}"
            assert _SECRET not in str(status), f"the text of a link's target is shown: {str(status)[:1000]}"
            replicas = [replica for role in found.roles_statuses for replica in role.replicas]
            for text in (found.msg, *(text or "" for each in replicas for text in (each.hostname, each.reason))):
                # Each change of it is a line of the task log, and is stored.
                is_short = len(text) <= MOST_CHARS and len(text.splitlines()) <= 1
                assert is_short, f"{app_id}: a message is not one line of {MOST_CHARS} letters: {text[:100]!r}"

    def test_results_that_are_not_documents_harm_no_other(self, apps: Apps, tmp_path: Path) -> None:
        """Results are stored in a database and read by other programs; an invalid one is an error of its app."""
        self.needs(Capability.RESULT)
        acts = {**_FILES, **_DOCUMENTS}
        by_app = {
            apps.start(apps.sh(_script("LAUNCH_RESULT_PATH", act, "true", tmp_path, 0))): name
            for name, act in acts.items()
        }
        ends = self._ends_next_to_a_bystander(apps, [*by_app])

        for app_id, found in ends.items():
            name = by_app[app_id]
            assert found.state is AppState.SUCCEEDED, f"{name}: {found}"
            assert _result_text(apps, app_id, name) == "", f"{name}: it was returned"

    def test_what_is_damaged_in_the_engine_harms_no_other_app(self, apps: Apps, engine: Engine) -> None:
        """Other processes can write records, labels and marks: an invalid one affects only its app."""
        third, inflated, forged = apps.start(apps.sh("exit 3")), apps.start(apps.sh("exit 4")), apps.new_id()
        for app_id in (third, inflated):
            apps.end(app_id)
        acts = [engine.damaged(third), engine.inflated(inflated), engine.forged(forged)]
        if not any(acts):
            pytest.skip("the backend cannot damage anything, see `damaged`, `inflated` and `forged` of `Engine`")
        with contextlib.ExitStack() as damage:
            for act in filter(None, acts):
                damage.enter_context(act)
            bystander = apps.start(apps.sh(_WRITER))
            with ThreadPoolExecutor(1) as pool:
                following = pool.submit(lambda: [*_events(apps, bystander)])
                # One scheduler saw the app before the damage, one did not.
                _poll_to_the_end([apps.scheduler, apps.another()], bystander, [third, inflated, forged], apps.timeout_s)
                events = following.result(apps.timeout_s)

            lines = [line.text for event in events if isinstance(event, LogLines) for line in event.lines]
            assert lines == _WRITTEN, "lines of the bystander are missing or repeated"
            for scheduler in (apps.scheduler, apps.another()):
                rows = {row.app_id: row.state for row in scheduler.list()}
                assert rows.get(bystander) is AppState.SUCCEEDED, (
                    f"the list shows {rows.get(bystander)} of the bystander"
                )
                missing = {third, inflated} - rows.keys()
                assert not missing, "the list leaves out a damaged app, which must be a row with state UNKNOWN"

    def _ends_next_to_a_bystander(self, apps: Apps, hostile: Sequence[str]) -> dict[str, DescribeAppResponse]:
        """Observe the apps to their end together with a bystander, whose lines must all arrive."""
        bystander = apps.start(apps.sh(_WRITER))
        memory = _Memory()
        with memory.observed(), ThreadPoolExecutor(len(hostile) + 1) as pool:
            following = pool.submit(lambda: [*_events(apps, bystander)])
            longest = [pool.submit(_longest_line, apps, app_id) for app_id in hostile]
            ends = _observe(apps, [*hostile, bystander])
            events = following.result(apps.timeout_s)
            lengths = [each.result(apps.timeout_s) for each in longest]

        lines = [line.text for event in events if isinstance(event, LogLines) for line in event.lines]
        assert lines == _WRITTEN, "lines of the bystander are missing or repeated"
        assert isinstance(events[-1], Ended)
        assert events[-1].response.state is AppState.SUCCEEDED
        assert max(lengths) <= _LONGEST_LINE, f"a line of {max(lengths)} letters is not cut"
        assert memory.grown < _MEMORY, f"the process grew by {memory.grown // _MB} MB"
        assert ends.pop(bystander).state is AppState.SUCCEEDED
        return ends


def _result_text(apps: Apps, app_id: str, name: str) -> str:
    """Return the text of a result that must not be returned; empty if an error was raised instead."""
    try:
        result = apps.scheduler.result(app_id)
    except SchedulerUnavailableError as error:
        raise AssertionError(f"{name}: an invalid result is reported as an outage: {error}") from error
    except LaunchError as error:
        return str(error) if _SECRET in str(error) else ""
    if name in _TEXTS and clean_json(result) == result:
        return ""
    return "" if result is None else str(result)[:200]


def _script(variable: str, act: str, printed: str, folder: Path, code: int) -> str:
    secret = folder / "secret"
    secret.write_text(f'"{_SECRET}"', encoding="utf-8")
    act = act.replace("SECRET", str(secret))
    return f'f=${variable}; rm -rf "$f" 2>/dev/null; {act}; {printed}; exit {code}'


def _observe(apps: Apps, app_ids: Sequence[str]) -> dict[str, DescribeAppResponse]:
    """Poll all apps and the list until all have ended; no poll may fail."""
    deadline = time.monotonic() + apps.timeout_s
    while True:
        found = apps.scheduler.describe_many(app_ids)
        listed = {row.app_id for row in apps.scheduler.list()}
        missing = [app_id for app_id in app_ids if found.get(app_id) is None or app_id not in listed]
        assert not missing, f"describe_many or list leaves out {missing}"
        ends = {app_id: each for app_id, each in found.items() if each is not None and is_terminal(each.state)}
        if len(ends) == len(app_ids):
            return ends
        late = [app_id for app_id in app_ids if app_id not in ends]
        assert time.monotonic() < deadline, f"not ended within {apps.timeout_s:g} s: {late}"
        time.sleep(_POLL_S)


def _poll_to_the_end(
    schedulers: Sequence[Scheduler[Any]], bystander: str, damaged: Sequence[str], timeout_s: float
) -> None:
    """Poll all apps like followers until the bystander has ended; damage must not be reported as an outage."""
    deadline = time.monotonic() + timeout_s
    state = AppState.UNKNOWN
    while not is_terminal(state):
        for scheduler in schedulers:
            answers = poll_many(scheduler, [*damaged, bystander])
            for app_id in damaged:
                answer = answers[app_id]
                assert not is_outage(answer), f"damage of one app is reported as an outage: {answer}"
                if isinstance(answer, DescribeAppResponse):
                    count = sum(role.num_replicas for role in answer.roles)
                    assert count <= MAX_REPLICAS, f"a damaged app has {count} replicas, each of which takes memory"
            found = answers[bystander]
            assert isinstance(found, DescribeAppResponse), f"damage of another app hides the bystander: {found}"
            assert bystander in {row.app_id for row in scheduler.list()}, "the list leaves out the bystander"
            state = found.state
        assert time.monotonic() < deadline, f"the bystander has not ended within {timeout_s:g} s"
        time.sleep(_POLL_S)
    assert state is AppState.SUCCEEDED, f"the bystander ended as {state}"


def _events(apps: Apps, app_id: str) -> Iterator[Event]:
    with (
        contextlib.closing(apps.another()) as scheduler,
        Follower(scheduler, app_id, poll_interval_s=_POLL_S, scheduled=True) as follower,
    ):
        yield from within(follower, apps.timeout_s, f"the follower of {app_id}")


def _longest_line(apps: Apps, app_id: str) -> int:
    longest = 0
    for event in _events(apps, app_id):
        if isinstance(event, LogLines):
            longest = max(longest, *(len(line.text) for line in event.lines), 0)
    return longest
