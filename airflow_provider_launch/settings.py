"""Names of environment variables, the default image and the launcher's home directory.

Variables that the *app* reads are a contract with apps, and keep their old names.
Variables that only configure the *launcher* have a new name, which takes precedence over the old one.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_launch import __version__

ENV_TORCHX_JOB_ID = "TORCHX_JOB_ID"
ENV_TORCHX_IMAGE = "TORCHX_IMAGE"
ENV_TORCHX_PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
ENV_TORCHX_TRACKERS = "TORCHX_TRACKERS"
ENV_TORCHX_INTERNAL_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
ENV_TORCHX_RANK0_HOST = "TORCHX_RANK0_HOST"
ENV_LAUNCH_RESULT_PATH = "LAUNCH_RESULT_PATH"

ENV_LAUNCHCONFIG = "LAUNCHCONFIG"
ENV_TORCHXCONFIG = "TORCHXCONFIG"
ENV_LAUNCH_HOME = "LAUNCH_HOME"
ENV_TORCHX_HOME = "TORCHX_HOME"
ENV_LAUNCH_CUSTOM_NAMED_RESOURCES = "LAUNCH_CUSTOM_NAMED_RESOURCES"
ENV_TORCHX_CUSTOM_NAMED_RESOURCES = "TORCHX_CUSTOM_NAMED_RESOURCES"
ENV_LAUNCH_IMAGE = "LAUNCH_IMAGE"

# An image that contains sh, bash, python and this package.
IMAGE = os.environ.get(ENV_LAUNCH_IMAGE) or f"airflow-provider-launch:{__version__}"


def getenv(*names: str) -> str | None:
    """Return the value of the first variable that is set and not empty; the new name comes first."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def tracker_config_env_var_name(name: str) -> str:
    """Return the name of the variable with the config of a tracker: `TORCHX_TRACKER_<NAME>_CONFIG`."""
    # Kubernetes does not accept colons, but a name of the form `module:factory` has one.
    return f"TORCHX_TRACKER_{name.upper().replace(':', '_')}_CONFIG"


def TORCHX_HOME(*subdir_paths: str) -> Path:  # noqa: N802 - a name of the launcher model
    """Return a directory below the launcher's home, `~/.torchx` unless `LAUNCH_HOME` is set; create it if missing."""
    home = getenv(ENV_LAUNCH_HOME, ENV_TORCHX_HOME)
    path = (Path(home).expanduser() if home else Path.home() / ".torchx").joinpath(*subdir_paths)
    path.mkdir(parents=True, exist_ok=True)
    return path


LAUNCH_HOME = TORCHX_HOME
