"""The fields of an event."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import Enum


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
