"""Log cursors in Airflow's task state store, which holds at most 64 KB under one key."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.util.untrusted import parse_json

MAX_PACKED = 60_000
_MAX_TEXT = 16 * 1024 * 1024


def pack(cursors: Mapping[str, Any]) -> str:
    """Return the cursors as short text."""
    text = json.dumps(cursors, separators=(",", ":"), sort_keys=True)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(packed: object) -> dict[str, Any]:
    """Return the cursors; empty if it is no packed text: users can edit the store in the UI."""
    if not isinstance(packed, str):
        return {}
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(base64.b64decode(packed), _MAX_TEXT)
        if inflater.unconsumed_tail:
            return {}  # not ours: 60 KB can be a thousand times as much text
        cursors = parse_json(text, _MAX_TEXT)
    except (ValueError, zlib.error):
        return {}
    return cursors if isinstance(cursors, dict) else {}
