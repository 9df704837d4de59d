"""The provider info that Airflow reads. A mistake here may stop the whole deployment of a user."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

from airflow_provider_launch.connections.forms import connection_form
from airflow_provider_launch.get_provider_info import get_provider_info
from airflow_provider_launch.hooks.launch import HOOKS
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.pipelines.step_operator import StepOperator
from airflow_provider_launch.schedulers.backends import BACKENDS
from airflow_provider_launch.schedulers.local.options import LocalConnection
from airflow_provider_launch.schedulers.structured_opts import StructuredOpts
from airflow_provider_launch.sensors.launch import AppStatusSensor
from tests.airflow.versions import HAS_CONN_FIELDS

INFO = get_provider_info()
TYPES = {item["connection-type"]: item for item in INFO["connection-types"]}


def load(path: str):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def names_of(options: type) -> list[str]:
    return [field.name for field in dataclasses.fields(options)]


def test_it_keeps_to_airflows_schema() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())

    jsonschema.validate(INFO, schema)


def test_the_package_name_is_canonical() -> None:
    """Another spelling stops every Airflow command (T2)."""
    assert INFO["package-name"] == "airflow-provider-launch"
    assert INFO["name"]
    assert INFO["description"]


def test_every_decorator_has_a_class_name() -> None:
    """Without one, every DAG that uses `@task.<name>` breaks (T3)."""
    assert INFO["task-decorators"]
    for item in INFO["task-decorators"]:
        assert callable(load(item["class-name"]))
        # The key of Airflow's schema, for the day when it is read.
        assert item["path"] == item["class-name"]


def test_every_link_of_a_task_is_listed() -> None:
    """Airflow takes only listed ones out of a serialised DAG."""
    used = {
        type(link) for cls in (LaunchAppOperator, AppStatusSensor, StepOperator) for link in cls.operator_extra_links
    }

    assert used == {load(path) for path in INFO["extra-links"]}


def test_plugins_are_not_declared_here() -> None:
    """Airflow ignores them here (T1)."""
    assert "plugins" not in INFO


@pytest.mark.parametrize("conn_type", TYPES)
def test_each_connection_type_fits_its_hook(conn_type) -> None:
    hook = load(TYPES[conn_type]["hook-class-name"])

    assert hook.conn_type == conn_type
    assert hook.hook_name == TYPES[conn_type]["hook-name"]
    assert "-" not in conn_type
    assert "__" not in conn_type


def test_every_hook_has_a_connection_type() -> None:
    assert {name: path.replace(":", ".") for name, path in HOOKS.items()} == {
        name: item["hook-class-name"] for name, item in TYPES.items()
    }


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks"])
def test_every_module_imports(kind) -> None:
    for item in INFO[kind]:
        for module in item["python-modules"]:
            importlib.import_module(module)


@pytest.mark.parametrize("info", BACKENDS.values(), ids=lambda info: info.name)
def test_the_form_shows_every_option_and_nothing_else(info) -> None:
    names = {*names_of(info.connection_options()), *names_of(info.launch_options())}

    assert set(TYPES[info.connection_type]["conn-fields"]) == names


def test_the_form_hides_passwords() -> None:
    hidden = {
        name
        for item in TYPES.values()
        for name, field in item["conn-fields"].items()
        if field["schema"].get("format") == "password"
    }

    of_ssh = {"ssh_key_secret", "ssh_key_password", "ssh_password"}
    assert hidden == {"registry_password", "kubeconfig_secret", "aws_secret_access_key", "aws_session_token", *of_ssh}


@pytest.mark.parametrize("conn_type", TYPES)
def test_each_field_can_be_shown_and_left_empty(conn_type) -> None:
    """Airflow does not check these: a field without "null" and default keeps Save disabled."""
    for name, field in TYPES[conn_type]["conn-fields"].items():
        assert set(field) == {"label", "description", "schema"}, name
        assert name == "scheduler" or "null" in field["schema"]["type"], name
        assert "$ref" not in field["schema"], name
        assert field["description"], name
        assert field["label"], name
    jsonschema.Draft7Validator.check_schema(
        {"properties": {name: field["schema"] for name, field in TYPES[conn_type]["conn-fields"].items()}}
    )


@pytest.mark.parametrize("conn_type", TYPES)
def test_each_list_declares_the_types_of_its_items(conn_type) -> None:
    """Without them Airflow shows one text per line, and stores objects as texts."""
    for name, field in TYPES[conn_type]["conn-fields"].items():
        if "array" in field["schema"]["type"]:
            types = field["schema"]["items"]["type"]
            assert {*([types] if isinstance(types, str) else types)} <= {"string", "object"}, name


def test_a_list_of_names_or_objects_is_edited_as_json() -> None:
    """A list of texts gets one per line; Airflow edits every other list as JSON."""
    fields = TYPES["launch_kubernetes"]["conn-fields"]

    assert fields["image_pull_secrets"]["schema"]["items"] == {"type": ["string", "object"]}
    assert fields["container_logs"]["schema"]["items"] == {"type": "string"}


@pytest.mark.parametrize("hint", [list[Any], list[str | Any]])
def test_a_list_of_a_plug_in_may_have_any_items(hint) -> None:
    """Without its form, the provider of the plug-in would not load."""
    plug_in = dataclasses.make_dataclass("PlugIn", [("more", hint | None, None)], bases=(StructuredOpts,), frozen=True)

    types = connection_form(plug_in, plug_in)["more"]["schema"]["items"]["type"]

    assert {"string", "object", "array"} <= {*types}


@pytest.mark.parametrize("conn_type", TYPES)
def test_each_field_explains_itself(conn_type) -> None:
    """Plain text with the name of the option and its default, since forms show neither."""
    for name, field in TYPES[conn_type]["conn-fields"].items():
        text = field["description"]
        assert text.startswith(f"{name}: "), name
        assert text.endswith("."), name
        assert not re.search(r"`|\b(None|False|unset|Empty means|[Dd]efault: null)\b", text), text
        assert name == "scheduler" or "Default:" in text, name


@pytest.mark.parametrize("info", BACKENDS.values(), ids=lambda info: info.name)
def test_defaults_of_launches_are_in_a_closed_section(info) -> None:
    """Airflow opens only the section of the fields without one: where apps run."""
    fields = TYPES[info.connection_type]["conn-fields"]
    of_launches = {name for name, field in fields.items() if "section" in field["schema"]}

    # The field of the connection is the default of the option of the same name.
    assert of_launches == {*names_of(info.launch_options())} - {*names_of(info.connection_options())}


def test_a_plugin_connection_needs_its_scheduler() -> None:
    """Airflow saves no form with an empty field that may not be null."""
    fields = TYPES["launch"]["conn-fields"]

    assert [name for name, field in fields.items() if "null" not in field["schema"]["type"]] == ["scheduler"]


def test_defaults_and_labels_are_readable() -> None:
    docker = TYPES["launch_docker"]["conn-fields"]

    assert docker["timeout_s"]["label"] == "Timeout (seconds)"
    assert docker["tls_ca"]["label"] == "TLS CA"
    assert docker["gpus"]["label"] == "GPUs"
    assert docker["shm_size_mb"]["label"] == "Shared memory size (MB)"
    assert docker["timeout_s"]["description"].endswith("Default: 30 seconds.")
    assert docker["init"]["description"].endswith("Default: yes.")
    assert docker["time_limit_s"]["description"].endswith("Default: no limit.")
    assert TYPES["launch"]["conn-fields"]["scheduler"]["label"].endswith("(required)")


def test_a_switch_never_shows_off_for_what_is_on() -> None:
    """A boolean whose default is true, or which may be unset, has three positions."""
    switches = {
        name
        for item in TYPES.values()
        for name, field in item["conn-fields"].items()
        if "boolean" in field["schema"]["type"]
    }

    assert TYPES["launch_docker"]["conn-fields"]["init"]["schema"]["enum"] == ["true", "false", None]
    assert TYPES["launch_kubernetes"]["conn-fields"]["in_cluster"]["schema"]["enum"] == ["true", "false", None]
    assert switches == {"prepend_cwd", "privileged", "quiet", "assign_public_ip", "exclusive", "plaintext", "test_node"}


@pytest.mark.parametrize("info", BACKENDS.values(), ids=lambda info: info.name)
def test_the_fields_of_the_connection_come_first(info) -> None:
    names = [*TYPES[info.connection_type]["conn-fields"]]
    own = names_of(info.connection_options())

    assert names[: len(own)] == own


@pytest.mark.parametrize("conn_type", TYPES)
def test_only_fields_that_airflow_can_hide_are_hidden(conn_type) -> None:
    behaviour = TYPES[conn_type]["ui-field-behaviour"]

    assert set(behaviour) == {"hidden-fields", "relabeling", "placeholders"}
    assert set(behaviour["hidden-fields"]) <= {"description", "schema", "host", "port", "login", "password"}


def test_importing_the_operator_imports_no_client_library() -> None:
    program = (
        "import airflow.sdk, sys; from airflow.sdk import BaseOperator, BaseSensorOperator; before = set(sys.modules)\n"
        "import airflow_provider_launch.operators.launch, airflow_provider_launch.sensors.launch\n"
        "import airflow_provider_launch.get_provider_info\n"
        "print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    brought = set(run.stdout.split())

    assert not {"docker", "kubernetes", "boto3", "fastapi"} & {name.partition(".")[0] for name in brought}
    assert "airflow_provider_launch.runner" not in brought
    assert "airflow_provider_launch.specs" not in brought


def test_a_root_that_depends_on_the_current_directory_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'root' must be an absolute path, not 'relative/dir'"):
        LocalConnection(root="relative/dir")

    assert LocalConnection(root="~/apps").root == "~/apps"


@pytest.mark.parametrize("conn_type", TYPES)
def test_the_form_of_airflow_3_1_hides_the_same_fields(conn_type) -> None:
    """That version asks the hook's own class, and knows no `conn-fields`."""
    hook = load(TYPES[conn_type]["hook-class-name"])
    behaviour = hook.__dict__["get_ui_field_behaviour"].__get__(None, hook)()

    assert sorted(behaviour["hidden_fields"]) == sorted(TYPES[conn_type]["ui-field-behaviour"]["hidden-fields"])


SHOW_FORMS = """
import json
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
print("FORMS " + json.dumps([each.model_dump() for each in HookMetaService.hook_meta_data()]))
"""


def test_airflow_shows_the_forms() -> None:
    """In another process, because Airflow replaces modules for it."""
    done = subprocess.run([sys.executable, "-c", SHOW_FORMS], capture_output=True, text=True, check=True, timeout=250)
    (found,) = (line for line in done.stdout.splitlines() if line.startswith("FORMS "))
    forms = {form["connection_type"]: form for form in json.loads(found.removeprefix("FORMS "))}

    assert set(TYPES) <= set(forms)
    for conn_type in TYPES:
        standard = forms[conn_type]["standard_fields"]
        assert {name for name, field in standard.items() if field and field["hidden"]} == {
            "host", "url_schema", "login", "password", "port"
        }  # fmt: skip
        if HAS_CONN_FIELDS:
            assert set(forms[conn_type]["extra_fields"]) == set(TYPES[conn_type]["conn-fields"])


@pytest.mark.parametrize("conn_type", TYPES)
def test_an_unset_choice_shows_its_default(conn_type) -> None:
    """Airflow shows "null" for a choice without a label."""
    for name, field in TYPES[conn_type]["conn-fields"].items():
        if "enum" in field["schema"]:
            label = field["schema"]["values_display"]["null"]
            assert label == "default" or label.startswith("default: "), name
            assert not re.search(r"\b(None|null|True|False)\b", label), name
