"""Docker's log streams: an 8-byte header with stream and length, then the text; one frame for each write of a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

HEADER = 8


def head_of(stream: int, length: int) -> bytes:
    """Return the header of a frame: 1 is stdout, 2 is stderr."""
    return bytes([stream, 0, 0, 0]) + length.to_bytes(4, "big")


def frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield complete frames with their headers; the rest of a broken one comes last."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= HEADER and len(buffer) >= (size := HEADER + int.from_bytes(buffer[4:HEADER], "big")):
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
