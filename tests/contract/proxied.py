"""An engine behind a proxy that counts and breaks the requests of the schedulers; the tests read it directly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import ClassVar

from airflow_provider_launch.testing import Engine
from tests.faults import FaultProxy


class ProxiedEngine(Engine):
    """The proxy does the same for all engines."""

    log_path: ClassVar[str]
    """Pattern of the paths from which logs are read."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy

    def requests(self) -> int:
        return self.proxy.count()

    def cut_off(self) -> AbstractContextManager[None]:
        return self.proxy.refused()

    def stall_logs(self) -> AbstractContextManager[None]:
        return self.proxy.stalled(self.log_path)


class StreamingEngine(ProxiedEngine):
    """Logs are followed by streams, and the engine reports times of its own clock."""

    def cut_streams(self) -> int:
        return self.proxy.cut("follow")

    @contextlib.contextmanager
    def clock(self, offset_s: float) -> Iterator[Callable[[float], None]]:
        with self.proxy.clock(offset_s) as clock:
            yield clock.step
