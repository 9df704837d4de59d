"""Components, options, connections and the template of the configuration file."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.cli.commands import COMMANDS
from airflow_provider_launch.schedulers.backends import BACKENDS

pytestmark = pytest.mark.engine("local")


def test_components_are_listed(launch) -> None:
    rows = {row["component"]: row["description"] for row in launch("components", "--json").data}

    assert rows["utils.echo"] == "Write a message to stdout."
    assert "utils.echo" in launch("components").out


def test_one_component_is_shown(launch) -> None:
    assert "--num_replicas" in launch("components", "utils.echo").out
    found = launch("components", "--json", "utils.echo").data
    assert found["component"] == "utils.echo"
    assert "--num_replicas" in found["usage"]
    assert "def echo(" in launch("components", "--print", "utils.echo").out
    assert launch("components", "utils.ecko").code == 2


def test_options_need_no_client_library(launch, monkeypatch) -> None:
    for name in ("docker", "kubernetes", "boto3", "paramiko"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    found = launch("options", "--json").data

    assert {*found} == {*BACKENDS}
    for name, info in BACKENDS.items():
        assert [row["name"] for row in found[name]["launch"]] == [key for key, _ in info.launch_options().as_runopts()]


def test_options_of_one_scheduler(launch) -> None:
    ran = launch("options", "local")

    assert "options of a connection" in ran.out
    assert "grace_s=GRACE_S (float, 10" in ran.out
    assert launch("options", "locl").code == 2


def test_connections_of_the_shell(launch, define, tmp_path) -> None:
    define("one", root=str(tmp_path))
    define("other", "http")
    (row,) = launch("connections", "--json").data

    assert row["connection"] == "one"
    assert row["where"] == f"local root={tmp_path}"
    assert row["source"] == "variable AIRFLOW_CONN_ONE"


def test_a_test_of_connections_reports_each(launch, define, tmp_path) -> None:
    define("good", root=str(tmp_path))
    define("bad", rot="x")
    ran = launch("connections", "--test", "--json")
    results = {row["connection"]: row["result"] for row in ran.data}

    assert ran.code == 1
    assert "answered and lists 0 apps" in results["good"]
    assert "did you mean 'root'" in results["bad"]


def test_connections_of_plug_ins_and_misspelt_types_are_listed(launch, define) -> None:
    define("plugin", "launch", scheduler="acme")
    define("typo", "launch_lokal")
    ran = launch("connections", "--json")
    rows = {row["connection"]: row for row in ran.data}

    assert ran.code == 1
    assert rows["plugin"]["where"].startswith("acme ")
    assert "'launch_lokal', which is not a launch type; use one of launch, launch_local" in rows["typo"]["result"]


def test_connections_of_airflows_own_types_are_listed_if_they_can_be_used(
    launch, define, monkeypatch, tmp_path
) -> None:
    """A host of files is a connection of type `ssh`, too, so that it is only tested by its id."""
    define("cluster", "kubernetes", kube_config_path=str(tmp_path / "none"))
    define("batch", "aws", region_name="eu-west-1")
    define("site", "http")
    monkeypatch.setenv("AIRFLOW_CONN_FILES", "ssh://me@files.example.com?no_host_key_check=true")
    monkeypatch.setenv("AIRFLOW_CONN_LOGIN_NODE", "ssh://me@slurm.example.com")
    ran = launch("connections", "--test", "--json")
    rows = {row["connection"]: row for row in ran.data}

    assert ran.code == 0
    assert sorted(rows) == ["batch", "cluster", "login_node"]
    assert {row["result"] for row in rows.values()} == {"not tested"}
    assert rows["login_node"]["where"].startswith("slurm ")

    named = launch("connections", "--test", "--json", "cluster", "files")
    assert named.code == 1
    assert all(row["result"].startswith("error: ") for row in named.data)


def test_one_connection_by_its_id(launch, define) -> None:
    define("a")
    define("b")

    assert [row["connection"] for row in launch("connections", "--json", "b").data] == ["b"]
    assert launch("connections", "none").code == 2


def test_the_template_is_written_once(launch, shell) -> None:
    path = launch("configure", "-a", "-s", "local").out.strip()

    assert path == str(shell / ".launchconfig")
    assert "grace_s = 10.0" in (shell / ".launchconfig").read_text()
    assert launch("configure").code == 2
    assert launch("configure", "-a", "-s", "local", "--print").out.startswith("[local]")
    assert launch("run", "-s", "local", "--dryrun", "utils.echo").code == 0


def test_a_warning_is_one_line(launch, shell) -> None:
    (shell / "app.json").write_text(json.dumps({
        "name": "w", "roles": [{"name": "r", "image": "", "entrypoint": "true", "workspace": {"projects": {".": ""}}}],
    }))  # fmt: skip
    ran = launch("run", "-s", "local_cwd", "--dryrun", "app.json")

    assert ran.code == 0
    assert not any("UserWarning" in line or ".py:" in line for line in ran.err.splitlines())


def test_each_command_has_json() -> None:
    without = [
        command.name
        for command in COMMANDS.values()
        if not any("--json" in argument.names for argument in command.arguments)
    ]

    assert len(COMMANDS) == 13
    assert without == []


@pytest.mark.parametrize(
    "words",
    [
        "run -s local utils.echo",
        "run -s local --log utils.echo",
        "run -s local --dryrun utils.echo",
        "status {app}",
        "describe {app}",
        "describe --native {app}",
        "log {app}",
        "log -f --tail 1 {app}",
        "list -s local",
        "cancel {app}",
        "delete {app}",
        "sweep -s local --older-than 0s",
        "components",
        "components utils.echo",
        "components --print utils.echo",
        "options",
        "options slurm",
        "connections",
        "connections --test c",
        "configure -s local",
        "configure -s local --print",
    ],
)
def test_json_is_all_that_a_command_prints(launch, define, words) -> None:
    """For `dryrun`, which needs Airflow, see `test_process.py`."""
    define()
    app = launch("run", "-s", "local", "--wait", "utils.echo").out.strip()
    name, *rest = words.format(app=app).split()
    ran = launch(name, "--json", *rest)

    assert ran.code == 0, ran.err
    assert documents(ran.out)


def test_each_command_is_asked_for_json() -> None:
    (asked,) = test_json_is_all_that_a_command_prints.pytestmark

    assert {words.split()[0] for words in asked.args[1]} == {*COMMANDS} - {"dryrun"}


def documents(text: str) -> list[object]:
    """Return the JSON documents of a text that has nothing else."""
    found, rest = [], text.lstrip()
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        found.append(document)
        rest = rest[end:].lstrip()
    return found
