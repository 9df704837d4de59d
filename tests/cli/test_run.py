"""`launch run`: from a component, a file or a default to an app, with the options that the connection allows."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from airflow_provider_launch.runner import Runner

pytestmark = pytest.mark.engine("local")

APP = {
    "name": "hello",
    "roles": [{"name": "greeter", "image": "", "entrypoint": "sh", "args": ["-c", "echo from file"]}],
}


def sh(text: str) -> list[str]:
    return ["utils.sh", "--", "sh", "-c", text]


def test_the_handle_is_the_only_data(launch) -> None:
    """A script takes it with `$(launch run ...)`, and still sees lines and states."""
    ran = launch("run", "-s", "local", "--log", *sh("echo out; echo err >&2"))

    assert ran.code == 0
    assert ran.out.startswith("local://torchx/sh-")
    assert len(ran.out.splitlines()) == 1
    assert "[sh/0] out\n" in ran.err
    assert "[sh/0] err\n" in ran.err
    assert ran.err.splitlines()[-1].endswith(": SUCCEEDED")


def test_the_end_is_shown_after_the_last_line(launch) -> None:
    ran = launch("run", "-s", "local", "--log", *sh("for i in $(seq 2000); do echo line $i; done"))

    lines = ran.err.splitlines()
    assert lines.index("[sh/0] line 2000") == len(lines) - 2


def test_a_failed_app_is_an_exit_code(launch) -> None:
    ran = launch("run", "-s", "local", "--wait", *sh("exit 3"))

    assert ran.code == 1
    assert "exit code 3" in ran.err
    assert "Traceback" not in ran.err


def test_without_wait_the_app_goes_on(launch) -> None:
    ran = launch("run", "-s", "local", *sh("sleep 60"))

    assert ran.code == 0
    assert launch("cancel", ran.out.strip()).code == 0


def test_json_has_the_handle_first_and_the_end_last(launch) -> None:
    first, last = launch("run", "--json", "-s", "local", "--wait", *sh("exit 3")).rows

    assert first["handle"] == last["handle"]
    assert last["state"] == "FAILED"
    assert last["roles"][0]["replicas"][0]["exit_code"] == 3


def test_a_dry_run_starts_nothing(launch, tmp_path) -> None:
    ran = launch("run", "-s", "local", "--dryrun", "utils.echo", "--msg", "hi")

    assert ran.code == 0
    assert "echo hi" in ran.out
    assert launch("list", "--json").data == []


def test_the_copy_of_a_workspace_is_shown(launch, shell) -> None:
    """How much is copied, and what is left out."""
    (shell / "code").mkdir()
    for name in ("run.sh", "notes.txt"):
        (shell / "code" / name).write_text("echo mirrored\n")
    (shell / "code" / ".launchignore").write_text("*.txt\n")
    role = {"name": "r", "image": "", "entrypoint": "sh", "args": ["run.sh"]}
    (shell / "app.json").write_text(json.dumps({**APP, "roles": [role]}))
    ran = launch("run", "-s", "local", "--log", "--workspace", "code", "app.json")

    assert (ran.code, ran.out.count("\n")) == (0, 1)
    assert "[r/0] mirrored" in ran.err
    (copied,) = [line for line in ran.err.splitlines() if line.startswith("copying workspace ")]
    assert "code: 2 files, " in copied
    assert "left out: notes.txt" in copied


@pytest.mark.engine("docker")
def test_the_build_of_a_workspace_is_shown_while_it_runs(start, shell, docker_engine) -> None:
    """A build may take minutes, and its output is the only sign of life."""
    (shell / "code").mkdir()
    (shell / "code" / "mark").write_text(uuid.uuid4().hex)
    (shell / "code" / "Dockerfile.torchx").write_text(
        "ARG IMAGE\nFROM $IMAGE\nRUN echo first step\nRUN sleep 3; echo second step\nCOPY mark /mark\n"
    )
    role = {"name": "r", "image": docker_engine.image, "entrypoint": "cat", "args": ["/mark"]}
    (shell / "app.json").write_text(json.dumps({**APP, "roles": [role]}))
    process = start("run", "-s", "docker", "-cfg", "pull=never", "--log", "--workspace", "code", "app.json")
    seen = {}
    for line in process.stderr:
        seen.setdefault(line.rstrip(), time.monotonic())
    handle = process.stdout.read().strip()
    with Runner("tests") as runner:
        runner.delete(handle)

    assert process.wait(60) == 0, seen
    assert seen["build: second step"] - seen["build: first step"] > 2
    assert f"[r/0] {(shell / 'code' / 'mark').read_text()}" in seen
    assert not [line for line in seen if "::" in line]
    (image,) = {line.removeprefix("build of ") for line in seen if line.startswith("build of ")}
    docker_engine.client.api.remove_image(image, force=True)


@pytest.mark.parametrize("name", ["app.json", "app.yaml"])
def test_an_app_may_be_a_file(launch, shell, name) -> None:
    (shell / name).write_text(json.dumps(APP))
    ran = launch("run", "-s", "local", "--log", name)

    assert ran.code == 0
    assert "[greeter/0] from file" in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[1]", "must have the fields of an app"),
        (json.dumps({**APP, "rols": []}), "did you mean 'roles'"),
    ],
)
def test_a_wrong_file_is_named(launch, shell, text, message) -> None:
    (shell / "app.json").write_text(text)
    ran = launch("run", "-s", "local", "app.json")

    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_a_missing_file_is_named(launch) -> None:
    assert "none.yaml" in launch("run", "none.yaml").err
    assert launch("run", "none.yaml").code == 2


def test_a_component_of_a_file_gets_its_arguments(launch, shell) -> None:
    (shell / "mine.py").write_text(
        "from airflow_provider_launch import specs\n"
        "def app(msg: str) -> specs.AppDef:\n"
        '    """Say it."""\n'
        "    role = specs.Role(name='r', image='', entrypoint='echo', args=[msg])\n"
        "    return specs.AppDef(name='mine', roles=[role])\n"
    )
    ran = launch("run", "-s", "local", "--log", "mine.py:app", "--msg", "here")

    assert "[r/0] here" in ran.err


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_after_the_component_is_its_help(launch, word) -> None:
    ran = launch("run", "-s", "local", "utils.echo", word)

    assert ran.code == 0
    assert "--num_replicas" in ran.out


def test_an_option_behind_the_component_is_explained(launch) -> None:
    ran = launch("run", "-s", "local", "utils.echo", "--json")

    assert ran.code == 2
    assert "--json is an option of `launch run`; did you mean it before utils.echo?" in ran.err


def test_a_default_component_needs_arguments_only(launch, shell) -> None:
    (shell / ".launchconfig").write_text("[cli:run]\ncomponent = utils.echo\nscheduler = local\n")
    ran = launch("run", "--log", "--", "--msg", "by default")

    assert "[echo/0] by default" in ran.err


def test_without_any_component_the_cure_is_named(launch) -> None:
    ran = launch("run", "-s", "local")

    assert ran.code == 2
    assert "name a component" in ran.err


def test_options_come_from_files_and_the_command_line(launch, shell) -> None:
    (shell / ".launchconfig").write_text(
        "[local]\ngrace_s = 1\ntime_limit_s = 70\n[component:utils.echo]\nmsg = filed\n"
    )
    ran = launch("run", "--json", "-s", "local", "-cfg", "grace_s=2", "--dryrun", "utils.echo")

    assert ran.data["cfg"]["grace_s"] == 2.0
    assert ran.data["cfg"]["time_limit_s"] == 70.0
    assert "echo filed" in ran.data["request"]


def test_the_file_of_the_current_directory_is_named(launch, shell) -> None:
    """It may come with a cloned repository, and copy variables of the shell into the app."""
    (shell / ".launchconfig").write_text(
        "[cli:run]\nscheduler = local\n[local]\ncopy_env = AWS_*\n[component:utils.echo]\nmsg = filed\n"
    )
    ran = launch("run", "--dryrun", "utils.echo")

    assert ran.err.count("defaults of launch run") == 1
    for text in ("defaults of launch run", "options of local", "arguments of utils.echo"):
        assert f"warning: {text} are read from files, also from ./.launchconfig" in ran.err
    assert "copy_env; LAUNCHCONFIG= reads none" in ran.err


def test_no_file_is_read_if_the_variable_is_empty(launch, shell, monkeypatch) -> None:
    monkeypatch.setenv("LAUNCHCONFIG", "")
    (shell / ".launchconfig").write_text("[local]\ntime_limit_s = 70\n")
    ran = launch("run", "--json", "--dryrun", "-s", "local", "utils.echo")

    assert ran.data["cfg"]["time_limit_s"] is None
    assert "launchconfig" not in ran.err


def test_a_misspelt_option_is_refused(launch) -> None:
    """It would be dropped, and the app would run with the default."""
    ran = launch("run", "-s", "local", "-cfg", "grac_s=2", "utils.echo")

    assert ran.code == 2
    assert "did you mean 'grace_s'?" in ran.err


def test_a_key_launches_once(launch) -> None:
    words = ("run", "-s", "local", "--key", "k", *sh("true"))

    assert launch(*words).out == launch(*words).out
    assert len(launch("list", "--json").data) == 1


# ---- connections ---------------------------------------------------------------------------------------------------


def test_a_connection_is_the_session(launch, define, tmp_path) -> None:
    ran = launch("run", "-c", define(root=str(tmp_path / "own"), grace_s=3), "--wait", *sh("true"))

    assert ran.out.startswith("local://c/")
    assert launch("status", ran.out.strip()).code == 0
    assert (tmp_path / "own" / "apps").is_dir()


def test_a_locked_option_stays_locked(launch, define) -> None:
    """Otherwise a user with the connection in a shell changes an option that its administrator has fixed."""
    ran = launch("run", "-c", define(grace_s=3, locked=["grace_s"]), "-cfg", "grace_s=1", "utils.echo")

    assert ran.code == 2
    assert "option 'grace_s' is locked by connection 'c'" in ran.err


def test_an_overlay_does_not_open_a_lock(launch, define, shell) -> None:
    app = {**APP, "roles": [{**APP["roles"][0], "metadata": {"local": {"grace_s": 1}}}]}
    (shell / "app.json").write_text(json.dumps(app))
    ran = launch("run", "-c", define(grace_s=3, locked=["grace_s"]), "app.json")

    assert ran.code == 2
    assert "has an overlay for 'local'" in ran.err


def test_what_defines_the_engine_is_no_option(launch, define) -> None:
    ran = launch("run", "-c", define(), "-cfg", "root=/x", "utils.echo")

    assert ran.code == 2
    assert "-cfg: option 'root' defines where apps run; set it in connection 'c'" in ran.err


def test_files_of_the_shell_do_not_change_a_connection(launch, define, shell) -> None:
    """The same connection means the same in a task."""
    (shell / ".launchconfig").write_text("[local]\ngrace_s = 1\n")
    ran = launch("run", "--json", "-c", define(), "--dryrun", "utils.echo")

    assert ran.data["cfg"]["grace_s"] == 10.0


def test_the_file_of_the_deployment_is_below_the_connection(launch, define, shell, monkeypatch) -> None:
    (shell / "deployed").write_text("[local]\ngrace_s = 1\ntime_limit_s = 70\n[component:utils.echo]\nmsg = deployed\n")
    monkeypatch.setenv("AIRFLOW__LAUNCH__CONFIG_FILE", str(shell / "deployed"))
    ran = launch("run", "--json", "-c", define(grace_s=3), "--dryrun", "utils.echo")

    assert ran.data["cfg"]["grace_s"] == 3.0
    assert ran.data["cfg"]["time_limit_s"] == 70.0
    assert "echo deployed" in ran.data["request"]


def test_scheduler_and_connection_exclude_each_other(launch, define) -> None:
    assert launch("run", "-s", "local", "-c", define(), "utils.echo").code == 2
