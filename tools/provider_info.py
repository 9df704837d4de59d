"""Makes `provider_info.json` from the options of the schedulers; every Airflow process reads it."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_launch.connections.forms import COMMON_FIELDS, LAUNCH_SECTION, connection_form
from airflow_provider_launch.schedulers.backends import BACKENDS, BackendInfo

_PACKAGE = "airflow_provider_launch"
_NAME = "Launch"
_STANDARD_FIELDS = ["host", "schema", "login", "password", "port"]


def provider_info() -> dict[str, Any]:
    """Return the provider info: connection types with their forms, and the modules of the classes."""
    return {
        "package-name": "airflow-provider-launch",
        "name": _NAME,
        "description": "Launch distributed apps (roles and replicas) on any scheduler.",
        "integrations": [{"integration-name": _NAME, "external-doc-url": _DOCS, "tags": ["service"]}],
        "operators": _modules("operators.launch"),
        "sensors": _modules("sensors.launch"),
        "triggers": _modules("triggers.launch"),
        "hooks": _modules("hooks.launch", *(f"hooks.{name}" for name in BACKENDS)),
        # Airflow reads `class-name`; its schema and documentation use `path`.
        "task-decorators": [
            {"name": name, "class-name": f"{_PACKAGE}.decorators.{path}", "path": f"{_PACKAGE}.decorators.{path}"}
            for name, path in _DECORATORS.items()
        ],
        "extra-links": [f"{_PACKAGE}.links.launch.{name}" for name in _LINKS],
        "cli": [f"{_PACKAGE}.cli.provider.get_launch_commands"],
        "connection-types": [*map(_type_of, BACKENDS.values()), _plugin_type()],
        "config": _CONFIG,
    }


_LINKS = (
    "SchedulerLink",
    "JobDefinitionLink",
    "QueueLink",
    "SchedulerLogLink",
    "RequestLink",
    "LauncherLink",
)
_DECORATORS = {"launch": "launch.launch_task", "launch_python": "launch_python.launch_python_task"}
_DOCS = "https://github.com/airflow-provider-launch/airflow-provider-launch/tree/main/docs"


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}]


def _type_of(info: BackendInfo) -> dict[str, Any]:
    return {
        "connection-type": info.connection_type,
        "hook-class-name": info.hook.replace(":", "."),
        "hook-name": f"{_NAME} ({info.title})",
        "conn-fields": connection_form(info.connection_options(), info.launch_options()),
        "ui-field-behaviour": {"hidden-fields": _STANDARD_FIELDS, "relabeling": {}, "placeholders": {}},
    }


def _plugin_type() -> dict[str, Any]:
    return {
        "connection-type": "launch",
        "hook-class-name": f"{_PACKAGE}.hooks.launch.LaunchHook",
        "hook-name": "Launch (plug-in scheduler)",
        "conn-fields": {
            "scheduler": {
                "label": "Scheduler (required)",
                "description": "scheduler: Name under which the plug-in registers its scheduler.",
                # Without null the form cannot be saved with an empty field.
                "schema": {"type": "string", "minLength": 1},
            },
            "params": {
                "label": "Parameters",
                "description": "params: JSON object with arguments of the scheduler's factory. Default: none.",
                "schema": {"type": ["object", "null"]},
            },
            "cfg": {
                "label": "Options",
                "description": "cfg: JSON object with default options of each launch. Default: none.",
                "schema": {"type": ["object", "null"], "section": LAUNCH_SECTION},
            },
            **COMMON_FIELDS,
        },
        "ui-field-behaviour": {"hidden-fields": _STANDARD_FIELDS, "relabeling": {}, "placeholders": {}},
    }


_CONFIG: dict[str, Any] = {
    "launch": {
        "description": "Settings of the Launch provider.",
        "options": {
            "replace_wait_s": {
                "description": "Seconds for which a cleared task waits until its previous app has ended. Before "
                "Airflow 3.3 also a retry waits, for a running app that a kill may be ending.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "60",
            },
            "log_drain_s": {
                "description": "Seconds without a new line after which the task stops reading the rest of the log.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "30",
            },
            "allowed_app_sources": {
                "description": "Comma-separated folders and URLs below which the worker may open files (overlays, "
                "workspaces, configs of Hydra, and `code_dir` and `data_dir` of pipelines), addresses of Docker "
                "engines that may build (`build_host`, as `tcp://host:port`) and of repositories that may get images "
                "(`image_repo`, as `docker://registry/path`), which are not in the DAG file but come from a template, "
                "an XCom or the configuration of a run. Empty: none.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "/opt/overlays, s3://bucket/overlays",
                "default": "",
            },
            "on_finish": {
                "description": "Whether an ended app is deleted, once its log and its result are in Airflow: `keep`, "
                "`delete_succeeded` or `delete`. A task may override it.",
                "version_added": "0.1.0",
                "type": "string",
                "example": None,
                "default": "delete_succeeded",
            },
            "defer_after_s": {
                "description": "Seconds for which the worker of a deferrable task follows its app before it defers, so "
                "that short apps need no triggerer. 0 defers at once.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "10",
            },
            "deployment_id": {
                "description": "Name of this Airflow, unique among those that launch on the same schedulers. It is "
                "stored in each app, and only the Airflow with this name cancels an app that has lost its task. Empty: "
                "an id that the first launch writes into Variable `launch_deployment_id`. Set it in production, "
                "because a copy of the database has the same Variable.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "airflow-production",
                "default": "",
            },
            "reconcile_interval_s": {
                "description": "Seconds between two rounds in which a triggerer cancels running apps whose task has "
                "ended. 0: never.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "60",
            },
            "trigger_fire_after_s": {
                "description": "Minimum seconds from a deferral to its event. Airflow fails a task that resumes before "
                "its scheduler has noticed that the worker has ended.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "10",
            },
            "trigger_log_bytes_per_s": {
                "description": "Maximum bytes of log lines that one triggerer process writes per second, shared fairly "
                "by all its apps. The worker writes the remaining lines after the end of an app.",
                "version_added": "0.1.0",
                "type": "float",
                "example": None,
                "default": "262144",
            },
            "config_file": {
                "description": "File with default options of schedulers, which connections and tasks override, and the "
                "trackers of all replicas. Empty means none: files in home and current directory are not read.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "/etc/launch/launchconfig",
                "default": "",
            },
            "allow_kubeconfig_exec": {
                "description": "Whether a kubeconfig in a connection may start programs (`exec`, `auth-provider`). If "
                "true, users who may edit connections can run programs on workers, triggerers and the host of the "
                "connection test.",
                "version_added": "0.1.0",
                "type": "boolean",
                "example": None,
                "default": "False",
            },
            "trigger_logs_last": {
                "description": "Whether the log of a triggerer can still be read after its task has ended. False makes "
                "the worker write the whole log at the end.",
                "version_added": "0.1.0",
                "type": "boolean",
                "example": None,
                "default": "True",
            },
        },
    }
}


def config_options() -> dict[str, dict[str, Any]]:
    """Return the options of section `[launch]` by name, in Airflow's format."""
    options: dict[str, dict[str, Any]] = _CONFIG["launch"]["options"]
    return options


def provider_info_document() -> str:
    """Return the JSON for `get_provider_info.py`, because building the info takes 20 ms in every process."""
    return json.dumps(provider_info(), indent=1, ensure_ascii=False) + "\n"
