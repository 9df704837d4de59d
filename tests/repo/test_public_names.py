"""The names that users import: what is listed exists, and what DAGs use is listed."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import airflow_provider_launch

PROMISED = {
    "operators.launch": ["LaunchAppOperator"],
    "sensors.launch": ["AppStatusSensor"],
    "decorators.launch": ["launch_task"],
    "links.launch": [
        "JobDefinitionLink",
        "LauncherLink",
        "QueueLink",
        "RequestLink",
        "SchedulerLink",
        "SchedulerLogLink",
    ],
    "hooks.launch": ["LaunchHook"],
    "hooks.local": ["LocalLaunchHook"],
    "pipelines": [
        "Conditional",
        "Dag",
        "Fail",
        "Map",
        "Parallel",
        "Pipeline",
        "PipelineError",
        "Stub",
        "Success",
        "Task",
        "dag_from_file",
        "load_pipelines",
        "metric",
        "pickled",
        "validate",
    ],
    "pipelines.plugin": ["BaseExecutor", "Node"],
    "runner": ["Runner", "get_runner"],
    "runner.api": ["Runner", "get_runner"],
    "schedulers": ["Scheduler", "get_default_scheduler_name", "get_scheduler_factories"],
    "schedulers.api": [
        "Capability",
        "DescribeAppResponse",
        "ListAppResponse",
        "LogChunk",
        "LogLine",
        "Scheduler",
        "Stream",
    ],
    "schedulers.local": ["create_scheduler"],
    "schedulers.masking": ["masked_args", "masked_env"],
    "specs": [
        "AppDef",
        "AppState",
        "AppStatus",
        "Resource",
        "RetryPolicy",
        "Role",
        "macros",
        "named_resources",
        "runopts",
    ],
    "specs.api": ["AppDef", "AppDryRunInfo", "AppHandle", "AppState", "AppStatus", "Resource", "Role", "macros"],
    "specs.builders": ["make_app_handle", "parse_mounts"],
}
PUBLIC = {
    "components": ["component_test_base", "dist", "structured_arg", "utils"],
    "connections": ["forms"],
    "decorators": ["launch", "launch_python"],
    "functions": [""],
    "hooks": ["aws_batch", "docker", "kubernetes", "launch", "local", "slurm"],
    "links": ["launch"],
    "operators": ["launch"],
    "pipelines": ["", "plugin"],
    "plugins": [""],
    "runner": ["", "api", "events"],
    "schedulers": [
        "",
        "api",
        "aws_batch_scheduler",
        "docker_scheduler",
        "kubernetes_scheduler",
        "local_scheduler",
        "masking",
        "parts",
        "queue",
        "slurm_scheduler",
    ],
    "sensors": ["launch"],
    "specs": ["", "api", "builders", "errors", "file_linter"],
    "testing": ["", "contract", "engine"],
    "tracker": ["", "api", "backend.fsspec"],
    "triggers": ["launch"],
    "version": [""],
    "workspace": [""],
}
"""Package to its modules from which others import; some have the names that TorchX has there."""
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(airflow_provider_launch.__path__, "airflow_provider_launch.")
    if ".example_dags" not in module.name and not module.name.endswith("__main__")
)


@pytest.mark.parametrize("module", sorted(PROMISED))
def test_promised_names_are_there(module):
    found = importlib.import_module(f"airflow_provider_launch.{module}")

    assert [name for name in PROMISED[module] if not hasattr(found, name)] == []


def test_listed_names_exist():
    """`from module import *` works, and a name that was removed does not stay in the list."""
    found = [importlib.import_module(module) for module in MODULES]
    missing = [
        f"{each.__name__}.{name}" for each in found for name in getattr(each, "__all__", []) if not hasattr(each, name)
    ]

    assert not missing, "\n".join(missing)


def test_only_public_modules_list_their_names():
    """Our own modules import a name from the module that defines it, so a list would only repeat that module."""
    public = {f"airflow_provider_launch.{package}.{name}".rstrip(".") for package in PUBLIC for name in PUBLIC[package]}
    listing = {module for module in MODULES if hasattr(importlib.import_module(module), "__all__")}

    assert not listing - public, f"remove __all__, or add the module to PUBLIC: {sorted(listing - public)}"
    assert not public - listing, f"remove from PUBLIC, or write __all__: {sorted(public - listing)}"
