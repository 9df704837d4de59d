"""The protocol between measures and run.py."""

from __future__ import annotations

import json


def row(
    what: str,
    ours: float,
    unit: str = "s",
    *,
    limit: float | None = None,
    peer: float | None = None,
    note: str = "",
) -> None:
    """Print one line of the table."""
    print(
        "ROW " + json.dumps({"what": what, "ours": ours, "unit": unit, "limit": limit, "peer": peer, "note": note}),
        flush=True,
    )


def skip(what: str, why: str) -> None:
    """Print one line with the reason why a measure is skipped."""
    print("ROW " + json.dumps({"what": what, "ours": None, "skipped": True, "note": f"skipped: {why}"}), flush=True)
