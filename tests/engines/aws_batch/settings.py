"""Settings that tests may change in a running server, and its counters, as JSON at `/launch-engine`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Settings:
    """Settings of one server."""

    list_lag_s: float = 0.3
    """Seconds for which ListJobs does not show a new job."""
    rates: dict[str, float] = field(default_factory=dict)
    """Operation (`submitjob`, `GetLogEvents`) to requests a second; more are throttled."""
    token_epoch: int = 0
    """Increased when the tokens of log reads expire."""
    late_events: bool = False
    """True if events keep their times although later ones were written before."""
    page: int | None = None
    """Maximum items of a page, if below AWS's own limit."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._spent: dict[str, tuple[float, float]] = {}
        self._spent_of = self.rates
        self.calls: Counter[str] = Counter()

    def admit(self, operation: str) -> bool:
        """Count a call; return False if it is throttled."""
        with self._lock:
            self.calls[operation] += 1
            if self._spent_of is not self.rates:
                # New rates start with full buckets, independent of earlier tests.
                self._spent_of, self._spent = self.rates, {}
            if (rate := self.rates.get(operation)) is None:
                return True
            tokens, at = self._spent.get(operation, (0.0, 0.0))
            now = time.monotonic()
            tokens = min(max(rate, 1.0), tokens + (now - at) * rate) if at else max(rate, 1.0)
            self._spent[operation] = (tokens - 1 if tokens >= 1 else tokens, now)
            return tokens >= 1
