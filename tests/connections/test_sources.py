"""Connections of a shell mean what they mean in Airflow, and the shell asks the environment before the file."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Connection

from airflow_provider_launch.connections.definition import UNUSED_FIELDS, read_definition
from airflow_provider_launch.connections.deployment import Deployment
from airflow_provider_launch.connections.sources import definitions, find_definition, has_airflow, shell_deployment
from airflow_provider_launch.specs.errors import InvalidAppError

URIS = [
    "launch-docker://?host=unix%3A%2F%2F%2Fvar%2Frun%2Fdocker.sock&pull=never",
    "launch-local:///",
    "launch-slurm://me:pw%40@host:22/schema?root=%2Fx",
    "launch-local://?__extra__=%7B%22grace_s%22%3A+3%7D",
    "launch-local://?empty=&b=2",
]


@pytest.fixture(autouse=True)
def shell(tmp_path, monkeypatch):
    for name in ("AIRFLOW_HOME", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "LAUNCH_CONNECTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LAUNCH_HOME", str(tmp_path / "launch"))
    (tmp_path / "launch").mkdir()
    return tmp_path


@pytest.mark.parametrize("uri", URIS)
def test_a_uri_means_the_same_as_in_airflow(uri, monkeypatch) -> None:
    theirs = (
        Connection.from_uri(uri, conn_id="c") if hasattr(Connection, "from_uri") else Connection(conn_id="c", uri=uri)
    )
    ours = read_definition("c", uri, "here")

    assert ours.conn_type.replace("-", "_") == theirs.conn_type
    assert ours.extras() == (theirs.extra_dejson or {})
    for name in UNUSED_FIELDS:
        assert bool(ours.unused[name]) == bool(getattr(theirs, name))


@pytest.mark.parametrize("extra", [{"grace_s": 3}, '{"grace_s": 3}', None])
def test_a_document_means_the_same_as_in_airflow(extra) -> None:
    text = json.dumps({"conn_type": "launch_local", "extra": extra, "login": "me"})
    theirs = Connection.from_json(text, conn_id="c")
    ours = read_definition("c", text, "here")

    assert ours.conn_type == theirs.conn_type
    assert ours.extras() == (theirs.extra_dejson or {})
    assert ours.unused["login"] == theirs.login


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{secret", "is not valid JSON"),
        ('{"extra": {}}', "has no conn_type"),
        ('{"conn_type": "launch_local", "extr": {}}', "unknown field 'extr'"),
        ("secret", "neither a URI"),
        ("launch-local://[secret", "is not a valid URI"),
        (["secret"], "must be a URI or an object"),
    ],
)
def test_a_wrong_definition_is_named_without_its_text(value, message) -> None:
    with pytest.raises(InvalidAppError, match=message) as caught:
        read_definition("c", value, "variable X")

    assert "'c' in variable X" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "message"), [("{", "is not valid JSON: Expecting"), ("[1]", "must be a JSON object")]
)
def test_a_wrong_extra_is_named(extra, message) -> None:
    found = read_definition("c", {"conn_type": "launch_local", "extra": extra}, "here")

    with pytest.raises(InvalidAppError, match=f"the extra of connection 'c' {message}"):
        found.extras()


@pytest.mark.parametrize("name", ["connections.yaml", "connections.json"])
def test_a_file_has_what_airflow_exports(shell, name, monkeypatch) -> None:
    row = {"conn_type": "launch_local", "extra": '{"grace_s": 3}', "description": None, "host": None, "port": None}
    (shell / "launch" / name).write_text(json.dumps({"c": row, "d": "launch-docker://"}))

    assert find_definition("c").extras() == {"grace_s": 3}
    assert find_definition("d").conn_type == "launch-docker"
    assert find_definition("e") is None
    assert [each.conn_id for each in definitions()][-2:] == ["c", "d"]


def test_the_environment_hides_the_file(shell, monkeypatch) -> None:
    (shell / "launch" / "connections.yaml").write_text("c: launch-docker://\n")
    monkeypatch.setenv("AIRFLOW_CONN_C", "launch-local://")

    assert find_definition("c").conn_type == "launch-local"
    assert [each.source for each in definitions() if each.conn_id == "c"] == ["variable AIRFLOW_CONN_C"]


def test_a_variable_names_the_file(shell, monkeypatch) -> None:
    (shell / "mine.yaml").write_text("c: launch-docker://\n")
    monkeypatch.setenv("LAUNCH_CONNECTIONS", str(shell / "mine.yaml"))
    assert find_definition("c") is not None

    monkeypatch.setenv("LAUNCH_CONNECTIONS", str(shell / "none.yaml"))
    with pytest.raises(InvalidAppError, match=r"none.yaml"):
        find_definition("c")


@pytest.mark.parametrize("text", ["[1]", "a: b: c", "\0"])
def test_a_wrong_file_is_named(shell, text) -> None:
    (shell / "launch" / "connections.yaml").write_text(text)
    with pytest.raises(InvalidAppError, match=r"connections\.yaml cannot be read"):
        find_definition("c")


def test_airflow_is_there_if_it_is_configured(shell, monkeypatch) -> None:
    assert not has_airflow()
    (shell / "airflow").mkdir()
    (shell / "airflow" / "airflow.cfg").write_text("[launch]\nconfig_file = /a%b\nallow_kubeconfig_exec = True\n")

    assert has_airflow()
    assert shell_deployment().config_file == "/a%b"
    assert shell_deployment().allow_kubeconfig_exec
    monkeypatch.setenv("AIRFLOW__LAUNCH__CONFIG_FILE", "")
    assert shell_deployment().config_file == ""


def test_a_database_in_the_environment_is_an_airflow(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:////x")

    assert has_airflow()


def test_a_wrong_setting_is_named(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__ALLOW_KUBECONFIG_EXEC", "perhaps")
    with pytest.raises(InvalidAppError, match="allow_kubeconfig_exec"):
        shell_deployment()


UNREADABLE = "/proc/self/mem"
"""A regular file that can be opened, but not read from its start."""


@pytest.mark.parametrize("kind", ["open", "encoding", "no read"])
def test_a_configuration_of_airflow_that_cannot_be_read_is_named(shell, monkeypatch, kind) -> None:
    path = shell / "airflow.cfg"
    if kind == "no read":
        path.symlink_to(UNREADABLE)
    else:
        path.write_bytes(b"[launch" if kind == "open" else b"\xff")
    monkeypatch.setenv("AIRFLOW_CONFIG", str(path))

    with pytest.raises(InvalidAppError, match=r"airflow\.cfg cannot be read: "):
        shell_deployment()


def test_a_file_of_connections_that_cannot_be_read_is_named(shell) -> None:
    (shell / "launch" / "connections.yaml").symlink_to(UNREADABLE)

    with pytest.raises(InvalidAppError, match=r"connections\.yaml cannot be read: .*Input/output error"):
        find_definition("c")


@pytest.mark.parametrize("kind", ["open", "no read"])
def test_a_file_of_defaults_that_cannot_be_read_is_named(tmp_path, kind) -> None:
    path = tmp_path / "defaults"
    path.write_text("[component:x\n") if kind == "open" else path.symlink_to(UNREADABLE)
    found = Deployment(str(path))

    for read in (lambda: found.component_defaults("x"), found.trackers):
        with pytest.raises(InvalidAppError, match=r"^config_file in the section launch of airflow\.cfg: ."):
            read()
