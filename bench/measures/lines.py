"""Numbered lines: a script that writes them, and a check that a log has each once and in order."""

from __future__ import annotations

import re
from pathlib import Path

FEW, MANY = 100_000, 1_000_000
SCRIPT = (
    'awk "BEGIN {{ for (n = 0; n < {lines}; n++)'
    ' print \\"step \\" n \\": loss 0.12345, accuracy 0.98, of usual length\\" }}"'
)
LINE = re.compile(rb"step (\d+): loss 0\.12345, accuracy 0\.98, of usual length\"")


def wrong(log: Path, lines: int) -> int:
    """Return the number of missing, repeated or unordered lines; remove the log."""
    seen = bytearray(lines)
    last, bad = -1, 0
    with log.open("rb") as records:
        for record in records:
            if found := LINE.search(record):
                number = int(found[1])
                bad += seen[number] or number < last
                seen[number], last = True, number
    log.unlink()
    return bad + seen.count(False)
