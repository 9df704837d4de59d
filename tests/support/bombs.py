"""Data and folders that take much more than they seem to."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

_PIECE = 2**20


def bomb(megabytes: int, *, gzip: bool = False, byte: bytes = b"\0") -> bytes:
    """Return a zlib or gzip stream of this many equal megabytes, without the checksum at its end.

    Repeats one compressed piece, because compressing all of it would take seconds.
    """
    packer = zlib.compressobj(9, wbits=-15)
    pieces = [packer.compress(byte * _PIECE) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" if gzip else b"\x78\xda"
    return head + pieces[0] + pieces[1] * (megabytes - 1)


def nested(path: Path, depth: int = 1500) -> None:
    """Create folders in folders, more than `shutil.rmtree` of Python 3.11 can remove."""
    at = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
