"""Each form of a connection in a browser: filled in, saved, edited, and with wrong values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from airflow_provider_launch.connections.definition import Definition
from airflow_provider_launch.connections.launch import LaunchConnection
from tests.browser.forms import TYPES, Form, example_of, kind_of
from tests.support.apps import until

CONN_TYPES = [*TYPES]


def stored(airflow, conn_id: str) -> dict[str, Any]:
    """Return the extras of a connection; Airflow hides passwords in them."""
    answer = airflow.ask("GET", f"/connections/{conn_id}")
    answer.raise_for_status()
    extras: dict[str, Any] = json.loads(answer.json()["extra"])
    return extras


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_each_field_is_stored_as_it_was_typed(airflow, page, conn_type) -> None:
    """A field of a wrong kind would store a text where the scheduler expects a number, or nothing at all."""
    form = Form(page, conn_type)
    form.add(f"all_{conn_type}")
    typed = {name: example_of(name, field["schema"]) for name, field in form.fields.items()}
    for name, value in typed.items():
        form.fill(name, value)
    form.save()
    found = stored(airflow, f"all_{conn_type}")
    # Airflow hides values by their names, also within objects.
    hidden = {name for name, value in found.items() if "***" in json.dumps(value)}
    passwords = {name for name, field in form.fields.items() if field["schema"].get("format") == "password"}

    assert passwords <= hidden
    assert {name: value for name, value in found.items() if name not in hidden} == {
        name: value for name, value in typed.items() if name not in hidden
    }
    assert found.keys() == typed.keys()


USEFUL: dict[str, dict[str, Any]] = {
    "launch_local": {"root": "/tmp/launch-of-a-form", "keep_days": 3, "grace_s": 2.5, "copy_env": ["HF_*", "WANDB_*"]},
    "launch_docker": {
        "host": "tcp://engine.example:2376",
        "tls_verify": "true",
        "tls_ca": "/etc/ca.pem",
        "pull": "always",
        "labels": {"team": "a"},
        "timeout_s": 20,
    },
    "launch_kubernetes": {"namespace": "team-a", "context": "research", "pull": "never", "grace_s": 5},
    "launch_aws_batch": {"region_name": "eu-west-1", "queue": "gpu", "layout": "array", "tags": {"team": "a"}},
    "launch_slurm": {"partition": "gpu", "exclusive": True, "signal": "TERM"},
    "launch": {"scheduler": "acme", "params": {"url": "http://x"}, "cfg": {"queue": "night"}, "locked": ["queue"]},
}


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_a_form_makes_a_connection_that_can_be_edited(airflow, page, picture, conn_type) -> None:
    """The strict checks of a connection accept what its form stores, also after a change of one field."""
    conn_id = f"useful_{conn_type}"
    form = Form(page, conn_type)
    form.add(conn_id)
    typed = {name: value for name, value in USEFUL[conn_type].items() if name in form.fields}
    for name, value in typed.items():
        form.fill(name, value)
    form.open_section("Extra Fields")
    form.dialog.get_by_role("heading").first.scroll_into_view_if_needed()
    picture(f"form-{conn_type.removeprefix('launch_').replace('_', '-')}")
    form.save()
    first = stored(airflow, conn_id)
    form.edit(conn_id)
    changed = "scheduler" if conn_type == "launch" else "locked"
    form.fill(changed, "other" if conn_type == "launch" else ["grace_s"])
    form.save()
    second = stored(airflow, conn_id)

    assert {*typed} == {*USEFUL[conn_type]}
    assert {name: value for name, value in first.items() if value is not None} == typed
    assert second == {**first, changed: "other" if conn_type == "launch" else ["grace_s"]}
    for extras in (first, second):
        assert LaunchConnection(Definition(conn_id, conn_type, extras)).options.identity


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_a_form_has_no_word_of_python_and_refuses_wrong_json(page, conn_type) -> None:
    form = Form(page, conn_type)
    form.add("words")
    if conn_type == "launch":
        form.fill("scheduler", "acme")
    sections = dict.fromkeys(field["schema"].get("section", "Extra Fields") for field in form.fields.values())
    shown = []
    for section in sections:
        form.open_section(section)
        shown.append(form.dialog.inner_text())
        chosen = [
            form.field(name).inner_text().strip()
            for name, field in form.fields.items()
            if "enum" in field["schema"] and field["schema"].get("section", "Extra Fields") == section
        ]
        assert [text for text in chosen if not text.startswith("default")] == []
    objects = [name for name, field in form.fields.items() if kind_of(field["schema"]) == "object"]
    assert form.can_save
    if objects:
        form.type_json(objects[0], '{"a": ')
        form.dialog.get_by_role("heading").first.click()
        until(lambda: not form.can_save, 60)
    form.close()

    # Within a JSON value null has a meaning, which the help of overlays explains.
    assert not re.search("Empty means|None|[Dd]efault: null|^null$", "\n".join(shown), re.MULTILINE)


def test_a_plug_in_needs_its_scheduler(page) -> None:
    form = Form(page, "launch")
    form.add("plugin")
    form.field("scheduler").wait_for()
    before = form.can_save
    form.fill("scheduler", "acme")

    assert not before
    until(lambda: form.can_save, 60)
    form.close()


def test_a_number_is_a_number_within_its_limits(airflow, page) -> None:
    """Letters are not taken, and a number below the limit becomes the limit, which Airflow does without a message."""
    form = Form(page, "launch_local")
    form.add("numbers")
    form.field("grace_s").press_sequentially("x7y")
    form.fill("time_limit_s", -3)
    form.save()
    found = stored(airflow, "numbers")

    assert found["grace_s"] in (7, None)
    assert found["time_limit_s"] in (form.fields["time_limit_s"]["schema"].get("minimum"), None)


def test_a_wrong_value_is_explained_by_the_test_of_the_connection(airflow, page) -> None:
    """Airflow saves any text; the button of the test answers for connections with a port, see docs/quickstart.md."""
    body = {
        "connection_id": "tested",
        "conn_type": "launch_local",
        "port": 0,
        "extra": json.dumps({"root": "relative/path"}),
    }
    airflow.ask("POST", "/connections", body).raise_for_status()
    page.goto("/connections")
    row = page.get_by_role("row").filter(has=page.get_by_text("tested", exact=True))
    with page.expect_response("**/connections/test") as answered:
        row.get_by_role("button", name="Test Connection").click()
    answer = answered.value.json()

    assert answer["status"] is False
    assert "relative/path" in answer["message"]
    assert "tested" not in answer["message"].replace("tested under", "")


def test_a_right_connection_passes_its_test(airflow, page, tmp_path) -> None:
    body = {
        "connection_id": "right",
        "conn_type": "launch_local",
        "port": 0,
        "extra": json.dumps({"root": str(tmp_path / "apps")}),
    }
    airflow.ask("POST", "/connections", body).raise_for_status()
    page.goto("/connections")
    row = page.get_by_role("row").filter(has=page.get_by_text("right", exact=True))
    with page.expect_response("**/connections/test") as answered:
        row.get_by_role("button", name="Test Connection").click()
    answer = answered.value.json()

    assert answer["status"] is True, answer
    assert "nothing was launched" in answer["message"]
