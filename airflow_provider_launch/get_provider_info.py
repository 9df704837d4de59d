"""The provider info that Airflow reads in each process: connection types with their forms, and classes by name.

`make gen` writes `provider_info.json` from the options' classes; edit those classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider info, in the form of Airflow's `provider_info.schema.json`."""
    info: dict[str, Any] = json.loads(Path(__file__).with_name("provider_info.json").read_bytes())
    return info
