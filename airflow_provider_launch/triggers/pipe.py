"""How much of what a triggerer has written its supervisor has not read yet.

The only module that reads private parts of Airflow's triggerer; where they are not as expected, nothing is known,
and the callers do with less.
"""

from __future__ import annotations

from typing import Any


def log_bytes_unread() -> int | None:
    """Return the bytes of log records on their way to the supervisor; None: not known here."""
    try:
        import structlog

        file = structlog.get_config()["logger_factory"].io
        return _unread(file.fileno())
    except Exception:  # noqa: BLE001 - private parts may change in any way
        return None


def comms_bytes_unread() -> int | None:
    """Return the bytes of requests on their way to the supervisor; None: not known here."""
    try:
        from airflow.sdk.execution_time import task_runner

        writer: Any = task_runner.SUPERVISOR_COMMS._async_writer  # type: ignore[attr-defined] # noqa: SLF001 - see above
        transport = writer.transport
        socket = transport.get_extra_info("socket")
        return int(transport.get_write_buffer_size()) + (_unread(socket.fileno()) or 0)
    except Exception:  # noqa: BLE001 - the same
        return None


def _unread(fd: int) -> int | None:
    import fcntl
    import stat
    import struct
    import termios
    from os import fstat

    if not stat.S_ISSOCK(fstat(fd).st_mode):
        return None
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0"))[0])
