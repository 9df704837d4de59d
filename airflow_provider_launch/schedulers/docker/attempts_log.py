"""The log of a replica: the logs of the containers of all its attempts, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from airflow_provider_launch.schedulers._kit.attempt_logs import Attempt, AttemptRead, read_attempts, unread_attempts
from airflow_provider_launch.schedulers.api import LogChunk, Stream
from airflow_provider_launch.schedulers.docker.containers import App, Container, Plan
from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.log_reader import CURSOR_KEYS, Chunk, LogReader
from airflow_provider_launch.schedulers.docker.log_stream import LogStreams
from airflow_provider_launch.schedulers.log_streams import LogStream


class AttemptsLog:
    """Reads logs of the apps of one engine. A cursor is that of one container, plus `"at"` for the attempt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reader = LogReader(engine)
        self._streams = LogStreams(engine)

    def close(self) -> None:
        """Close the cached open responses."""
        self._reader.close()

    def read(
        self, app: App, role_name: str, k: int, state: dict[str, Any], streams: Stream | None
    ) -> tuple[LogChunk, bool]:
        """Return the next lines of a replica, and whether the result is final even with an old list of containers."""
        attempts = _attempts(app, role_name, k)
        is_certain = bool(attempts and state.get("done"))

        def read_one(attempt: Attempt[Container], state: Mapping[str, Any]) -> AttemptRead:
            nonlocal is_certain
            chunk = self._read_some(attempt.source, state, streams)
            is_certain = not chunk.partial
            return AttemptRead(chunk.lines, chunk.cursor)

        chunk = read_attempts(attempts, state, read_one)
        return chunk, is_certain and _is_only(app, role_name)

    def stream(
        self, app: App, role_name: str, k: int, state: Mapping[str, Any], only: Stream | None
    ) -> LogStream | None:
        """Return a stream of the attempt of the cursor, if that attempt still runs."""
        # The rest of an earlier attempt is read first.
        attempt = next(unread_attempts(_attempts(app, role_name, k), state), None)
        return None if attempt is None or not attempt.source.live else self._stream_of(attempt, state, only)

    def _stream_of(
        self, attempt: Attempt[Container], state: Mapping[str, Any], only: Stream | None
    ) -> LogStream | None:
        container = attempt.source
        cursor = {name: state[name] for name in CURSOR_KEYS if name in state} if attempt.has(state) else {}
        opened = self._streams.open(container.id, cursor)
        if opened is None:
            return None
        answer, parser = opened
        wire = self._engine.wire
        return LogStream(
            answer,
            parser,
            host=wire.url,
            cursor_of=lambda after: {**attempt.key, **after} if after else attempt.key,
            attempt=attempt.number,
            only=None if only is Stream.COMBINED else only,
            is_remote=not wire.url.startswith("unix:"),
            on_lost=lambda: self._streams.widen(container.id, parser),
        )

    def _read_some(self, container: Container, state: Mapping[str, Any], streams: Stream | None) -> Chunk:
        """Return lines of the wanted stream; an empty chunk means that there are none."""
        while True:
            chunk = self._reader.read(container.id, state, complete=not container.live)
            if streams not in {None, Stream.COMBINED}:
                chunk.lines = [line for line in chunk.lines if line.stream in {streams, Stream.COMBINED}]
            # There may be megabytes of the other stream before the next line.
            if chunk.lines or chunk.at_end:
                return chunk
            state = chunk.cursor


def _attempts(app: App, role_name: str, k: int) -> list[Attempt[Container]]:
    return [
        Attempt(
            container,
            _start_of(container.app_attempt, container.attempt),
            number,
            has_log=not container.unstarted,
            is_over=not container.live and not container.unstarted,
        )
        for number, container in enumerate(app.attempts.get((role_name, k), []))
    ]


@lru_cache(maxsize=64)
def _start_of(app_attempt: int, attempt: int) -> dict[str, Any]:
    # Shared, because a cursor is never changed and many idle apps have the same one.
    return {"at": [app_attempt, attempt]}


def _is_only(app: App, role_name: str) -> bool:
    """Return whether a replica of this role can never have a second attempt."""
    policies = Plan.of(app).policies
    restarts = any(policy.policy == "APPLICATION" and policy.max_retries for policy in policies.values())
    return not restarts and not policies[role_name].max_retries
