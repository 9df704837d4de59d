"""One event per call of a runner, for users who want to observe a launcher."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import traceback
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from airflow_provider_launch.util.session import get_session_id_or_create_new

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["LaunchEvent", "SourceType", "TorchxEvent", "get_logging_handler", "log_event", "record"]


class SourceType(str, Enum):
    """The caller of the method."""

    UNKNOWN = "<unknown>"
    INTERNAL = "INTERNAL"
    EXTERNAL = "EXTERNAL"


@dataclass
class LaunchEvent:
    """One call of a runner method."""

    session: str
    scheduler: str
    api: str
    app_id: str | None = None
    app_image: str | None = None
    app_metadata: dict[str, str] | None = None
    runcfg: str | None = None
    raw_exception: str | None = None
    """The traceback of the error that ended the call."""
    source: SourceType = SourceType.UNKNOWN
    cpu_time_usec: int | None = None
    wall_time_usec: int | None = None
    start_epoch_time_usec: int | None = None
    workspace: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    exception_source_location: str | None = None
    """JSON with `filename`, `lineno` and `name`."""

    def __str__(self) -> str:
        return self.serialize()

    def serialize(self) -> str:
        """Return the event as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def deserialize(data: str | LaunchEvent) -> LaunchEvent:
        """Return the event of a JSON text; an event is returned unchanged.

        Raises:
            TypeError: `data` is neither.
        """
        if isinstance(data, LaunchEvent):
            return data
        if not isinstance(data, str):
            raise TypeError(f"an event is read from JSON text, not from {type(data).__name__}; pass text")
        fields = json.loads(data)
        fields["source"] = SourceType(fields["source"])
        return LaunchEvent(**fields)


TorchxEvent = LaunchEvent


_log = logging.getLogger(__name__)
_loggers: dict[str, logging.Logger] = {}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: `console` writes to stderr, `null` nowhere.

    Raises:
        ValueError: the destination does not exist.
    """
    if destination == "null":
        return logging.NullHandler()
    if destination == "console":
        return logging.StreamHandler()
    raise ValueError(f"unknown event destination {destination!r}; use `console` or `null`")


def record(event: LaunchEvent, destination: str = "null") -> None:
    """Send the event to a destination, `null` or `console`; never raise."""
    try:
        _logger_of(destination).info(event.serialize())
    except Exception:  # noqa: BLE001 - a failed event must not break the call that it describes
        _log.debug("event of %s was not recorded", event.api, exc_info=True)


def _logger_of(destination: str) -> logging.Logger:
    logger = _loggers.get(destination)
    if logger is None:
        logger = logging.getLogger(f"{__name__}.to.{destination}")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.handlers[:] = [get_logging_handler(destination)]
        _loggers[destination] = logger
    return logger


class log_event:  # noqa: N801 - a name of TorchX, used like a function
    """Context manager that measures a call and records it at the end, also if it fails; errors are not caught.

    Fields that are known only during the call may be set on `.event`.
    """

    def __init__(
        self,
        api: str,
        scheduler: str | None = None,
        app_id: str | None = None,
        app_image: str | None = None,
        app_metadata: dict[str, str] | None = None,
        runcfg: str | None = None,
        workspace: str | None = None,
    ) -> None:
        self.event = LaunchEvent(
            session=get_session_id_or_create_new(),
            scheduler=scheduler or "",
            api=api,
            app_id=app_id,
            app_image=app_image,
            app_metadata=app_metadata,
            runcfg=runcfg,
            workspace=workspace,
        )
        self._wall_ns = 0
        self._cpu_ns = 0

    @property
    def _torchx_event(self) -> LaunchEvent:
        return self.event

    def __enter__(self) -> Self:
        self.event.start_epoch_time_usec = time.time_ns() // 1000
        self._wall_ns = time.perf_counter_ns()
        self._cpu_ns = time.process_time_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.event.wall_time_usec = (time.perf_counter_ns() - self._wall_ns) // 1000
        self.event.cpu_time_usec = (time.process_time_ns() - self._cpu_ns) // 1000
        if error is not None:
            self.event.raw_exception = "".join(traceback.format_exception(kind, error, trace))
            self.event.exception_type = type(error).__name__
            self.event.exception_message = str(error)
            self.event.exception_source_location = _location(trace)
        record(self.event)


def _location(trace: TracebackType | None) -> str | None:
    frames = traceback.extract_tb(trace)
    if not frames:
        return None
    last = frames[-1]
    return json.dumps({"filename": last.filename, "lineno": last.lineno, "name": last.name})
