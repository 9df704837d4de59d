"""What Airflow reads about this provider. Made by `make gen` from the options' classes; edit those."""

from __future__ import annotations

from typing import Any

__all__ = ["get_provider_info"]


def get_provider_info() -> dict[str, Any]:
    """Return the provider info: connection types with their forms, and where the classes are."""
    return {
        "package-name": "airflow-provider-launch",
        "name": "Launch",
        "description": "Launch distributed apps (roles and replicas) on any scheduler.",
        "integrations": [
            {
                "integration-name": "Launch",
                "external-doc-url": "https://github.com/airflow-provider-launch/airflow-provider-launch/tree/main/docs",
                "tags": ["service"],
            }
        ],
        "operators": [{"integration-name": "Launch", "python-modules": ["airflow_provider_launch.operators.launch"]}],
        "sensors": [{"integration-name": "Launch", "python-modules": ["airflow_provider_launch.sensors.launch"]}],
        "hooks": [
            {
                "integration-name": "Launch",
                "python-modules": ["airflow_provider_launch.hooks.launch", "airflow_provider_launch.hooks.local"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "launch_local",
                "hook-class-name": "airflow_provider_launch.hooks.local.LocalLaunchHook",
                "hook-name": "Launch (local processes)",
                "conn-fields": {
                    "root": {
                        "label": "Root",
                        "description": "Directory of apps and logs. None means "
                        "`local` below `LAUNCH_HOME`, or below "
                        "`~/.torchx`.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "gpus": {
                        "label": "Gpus",
                        "description": "UUIDs or indices of the GPUs that apps may "
                        "use. None means all that the driver of this "
                        "host lists.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "keep_days": {
                        "label": "Keep days",
                        "description": "Days after which the directory of a finished app is removed.",
                        "schema": {"minimum": 0, "type": ["integer", "null"]},
                    },
                    "copy_env": {
                        "label": "Copy env",
                        "description": "Patterns (`HF_*`) of variables that "
                        "replicas inherit from the launcher, "
                        "besides `PATH`, `HOME`, `LANG` and so "
                        "on.\n"
                        "`AIRFLOW*` is never copied.",
                        "schema": {"items": {"type": "string"}, "type": ["array", "null"]},
                    },
                    "working_dir": {
                        "label": "Working dir",
                        "description": "Directory in which replicas start, "
                        "relative to the image directory. None "
                        "means the image directory.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "prepend_cwd": {
                        "label": "Prepend cwd",
                        "description": "Whether the image directory comes "
                        "first in `PATH`, so that its programs "
                        "win; otherwise it comes last.",
                        "schema": {"type": ["boolean", "null"]},
                    },
                    "grace_s": {
                        "label": "Grace (seconds)",
                        "description": "Seconds between TERM and KILL when replicas are stopped.",
                        "schema": {"minimum": 0, "type": ["number", "null"]},
                    },
                    "time_limit_s": {
                        "label": "Time limit (seconds)",
                        "description": "Seconds after which the app is ended "
                        "as FAILED, counted from its "
                        "submission. None means no limit.",
                        "schema": {"minimum": 1, "type": ["number", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
            {
                "connection-type": "launch",
                "hook-class-name": "airflow_provider_launch.hooks.launch.LaunchHook",
                "hook-name": "Launch (scheduler of a plug-in)",
                "conn-fields": {
                    "scheduler": {
                        "label": "Scheduler",
                        "description": "Name under which the plug-in registers its scheduler.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "params": {
                        "label": "Parameters",
                        "description": "JSON object: keywords for the factory of the scheduler.",
                        "schema": {"type": ["object", "null"]},
                    },
                    "cfg": {
                        "label": "Options",
                        "description": "JSON object: default options of each launch.",
                        "schema": {"type": ["object", "null"]},
                    },
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                    "relabeling": {},
                    "placeholders": {},
                },
            },
        ],
        "config": {
            "launch": {
                "description": "Settings of the Launch provider.",
                "options": {
                    "replace_wait_s": {
                        "description": "Seconds for which a cleared task waits until the app of before has ended.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "60",
                    },
                    "log_drain_s": {
                        "description": "Seconds without a new line after which the rest of the log is given up.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": None,
                        "default": "30",
                    },
                },
            }
        },
    }
