"""Environment variables that a runner adds to every replica, among them the configured trackers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_provider_launch.runner.config import find_configs, read_sections
from airflow_provider_launch.schedulers.environment import RANK0_ENV
from airflow_provider_launch.settings import (
    ENV_LAUNCH_RESULT_PATH,
    ENV_TORCHX_INTERNAL_SESSION_ID,
    ENV_TORCHX_JOB_ID,
    ENV_TORCHX_PARENT_RUN_ID,
    ENV_TORCHX_TRACKERS,
    tracker_config_env_var_name,
)
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.handles import make_app_handle
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.util.session import get_session_id_or_create_new

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_launch.specs.roles import AppDef

log = logging.getLogger(__name__)

_PREFIXES = ("launch", "torchx")
_OF_REPLICAS = frozenset(
    {
        "LAUNCH_APP_ID", "LAUNCH_ROLE", "LAUNCH_REPLICA_ID", "LAUNCH_NUM_REPLICAS", "LAUNCH_ATTEMPT",
        ENV_LAUNCH_RESULT_PATH, "TORCHELASTIC_ERROR_FILE", RANK0_ENV,
    }
)  # fmt: skip
"""Variables that a scheduler sets in each replica; results and errors are read from the paths in two of them."""


def refuse_env_of_replicas(app: AppDef) -> None:
    """Refuse variables of roles that the scheduler sets itself.

    Some schedulers would replace the value, and others would not find the result or the error of the program.
    """
    for at, role in enumerate(app.roles):
        if own := sorted(_OF_REPLICAS.intersection(role.env)):
            raise InvalidAppError(
                f"roles.{at}.env: the launcher sets {', '.join(own)} in each replica; "
                f"leave it out, or pass your value under another name"
            )


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


def inject_env(
    app: AppDef, backend: str, session: str, parent_run_id: str | None, trackers: Mapping[str, str | None] | None
) -> None:
    """Give each role the variables with which its program finds its app, its parent run and its trackers.

    Without `trackers`, name to config, they are read from files and variables.
    """
    # The launcher's own parent wins: a launcher that is part of a run passes this run on.
    parent = os.environ.get(ENV_TORCHX_PARENT_RUN_ID) or parent_run_id
    injected = {
        ENV_TORCHX_JOB_ID: make_app_handle(backend, macros.escape(session), macros.app_id),
        ENV_TORCHX_INTERNAL_SESSION_ID: get_session_id_or_create_new(),
    }
    if parent:
        injected[ENV_TORCHX_PARENT_RUN_ID] = macros.escape(parent)
    given = get_configured_trackers() if trackers is None else trackers
    tracking: dict[str, str] = {}
    if given:
        tracking[ENV_TORCHX_TRACKERS] = macros.escape(",".join(given))
    for name, config in given.items():
        if config is not None:
            tracking[tracker_config_env_var_name(name)] = macros.escape(config)
    for role in app.roles:
        # Not refused, because an app that was described and is launched again has the variables of its first launch.
        if replaced := sorted(name for name in injected if role.env.get(name, injected[name]) != injected[name]):
            log.warning("role %r: the launcher replaces the value of %s", role.name, ", ".join(replaced))
        role.env.update(injected)
        # A role may have its own trackers.
        role.env = {**tracking, **role.env}
