"""How far the log of one replica is read, and when it is to be read again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_launch.follow.replicas import Phase

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import JsonValue
    from airflow_provider_launch.schedulers.log_streams import LogStream


@dataclass(slots=True)
class ReplicaLog:
    """State of one replica; `LogReader` changes it under its lock."""

    role: str
    k: int
    cursor: JsonValue
    skipping: bool
    phase: Phase
    attempt: int
    drop: int = 0
    """Lines after the cursor that were reported before."""
    due: float = 0.0
    quiet_since: float = field(default_factory=time.monotonic)
    failures: int = 0
    complete: bool = False
    reported: tuple[str, ...] = ()
    last_error: str = ""
    stream: LogStream | None = None
    streamed_at: float = 0.0
    no_stream_until: float = 0.0
    cuts: int = 0
    """Streams in a row that did not last, or could not be opened."""
    is_behind: bool = False
    reported_attempt: int = 0
    """The latest attempt of which is reported how those before it ended."""
    unfinished: str = ""
    """What was shown last of a line that has not ended."""
    unfinished_at: float = 0.0
    """From when on more of it is shown."""
    refreshes: int = 0
    """How often it was shown."""
    distrusts: str = ""
    """Host of a stream that was silent for long: if there are lines now, it was dead."""

    @property
    def is_waiting(self) -> bool:
        """Whether its log is to be read some time."""
        return not self.complete and self.phase is not Phase.WAITING
