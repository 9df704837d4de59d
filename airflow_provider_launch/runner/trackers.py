"""The trackers of the replicas of a launch, read from files and variables of the launcher."""

from __future__ import annotations

import os
from collections.abc import Iterable

from airflow_provider_launch.runner.config import find_configs, read_sections
from airflow_provider_launch.settings import ENV_TORCHX_TRACKERS, tracker_config_env_var_name

_PREFIXES = ("launch", "torchx")


def get_configured_trackers(files: Iterable[str] | None = None) -> dict[str, str | None]:
    """Return name to config of the trackers.

    Names are the keys of `[launch:tracker]`, or of the older `[torchx:tracker]`, unless `TORCHX_TRACKERS` is set. The
    config is the value in `[tracker:<name>]`, unless `TORCHX_TRACKER_<NAME>_CONFIG` is set.

    Args:
        files: the files to read. None means `find_configs()`.
    """
    paths = find_configs() if files is None else list(files)
    names = os.environ.get(ENV_TORCHX_TRACKERS)
    if names is None:
        sections = (read_sections(paths, prefix).get("tracker") for prefix in _PREFIXES)
        found: list[str] = list(next((section for section in sections if section), {}))
    else:
        found = [name.strip() for name in names.split(",") if name.strip()]
    configs = read_sections(paths, "tracker")
    return {
        name: os.environ.get(tracker_config_env_var_name(name), configs.get(name, {}).get("config")) for name in found
    }
