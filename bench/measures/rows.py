"""How a measure tells its figures to run.py."""

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
