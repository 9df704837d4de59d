"""Texts and files of another person or a program: they must not control the terminal, the command or its JSON."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_launch.cli.output import Output
from tests.cli.conftest import ROOT

pytestmark = pytest.mark.engine("local")

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31m\rb\u202ec\x1b[31mred"
RAW = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e")


class Screen(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch):
    """Write to a terminal, and return what it got."""

    def show(write) -> str:
        # Here, because pytest sets its own streams after the setup of a test.
        found = Screen(io.BytesIO(), encoding="utf-8", newline="")
        monkeypatch.setattr(sys, "stdout", found)
        monkeypatch.setattr(sys, "stderr", found)
        write(Output(as_json=False))
        found.flush()
        return found.buffer.getvalue().decode()

    return show


WRITES = {
    "data": lambda output: output.data(HOSTILE),
    "note": lambda output: output.note(HOSTILE),
    "error": lambda output: output.error(HOSTILE),
    "table": lambda output: output.table([{"name": HOSTILE}]),
    "line": lambda output: output.line("r/0", HOSTILE, HOSTILE),
}


@pytest.mark.parametrize("kind", WRITES)
def test_hostile_text_is_escaped_on_a_terminal(screen, kind) -> None:
    shown = screen(WRITES[kind])

    assert not any(raw in shown for raw in RAW)
    assert "\\x1b]0;title" in shown
    assert "\\u202e" in shown


HIDDEN = "\x1b[8mhidden"
COLOURED = {
    "data": lambda output: output.data(HIDDEN),
    "note": lambda output: output.note(HIDDEN),
    "error": lambda output: output.error(HIDDEN),
    "line": lambda output: output.line("r/0", "r/0", HIDDEN),
}


@pytest.mark.parametrize("kind", COLOURED)
def test_a_colour_ends_with_its_line(screen, kind) -> None:
    """Otherwise the next replica, or the prompt of the shell, would be invisible."""
    shown = screen(COLOURED[kind])

    assert shown.endswith("\x1b[8mhidden\x1b[0m\n")


def test_a_cell_stays_in_its_row(capsys) -> None:
    """A script reads the table line by line, and a name must not make one."""
    Output(as_json=False).table([{"handle": "a\nlocal://forged/app-1\tx", "state": "b"}])

    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_pipe_gets_the_text_unchanged(capsys) -> None:
    Output(as_json=False).data(HOSTILE)

    assert capsys.readouterr().out == f"{HOSTILE}\n"


def test_a_message_that_cannot_be_written_is_reported_as_any_handler_does(monkeypatch) -> None:
    class Narrow(io.StringIO):
        def write(self, text: str) -> int:
            if text == "progress\n":
                raise ValueError("narrow")
            return super().write(text)

    found = Narrow()
    monkeypatch.setattr(sys, "stderr", found)
    with Output(as_json=False).messages(verbose=False):
        logging.getLogger("airflow_provider_launch").info("progress")

    assert found.getvalue().startswith("--- Logging error ---\n")


def test_data_is_discarded_without_a_trace(tmp_path, monkeypatch) -> None:
    path = tmp_path / "out"
    with path.open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        before = set(Path("/proc/self/fd").iterdir())
        Output(as_json=False).discard()
        Output(as_json=False).data("late")
        file.flush()

        assert set(Path("/proc/self/fd").iterdir()) <= before
    assert path.read_text() == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", "\x9b\u202e\x7f", {"a": {1}}])
def test_json_is_valid(capsys, value) -> None:
    Output(as_json=True).row({"value": value})
    text = capsys.readouterr().out

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(text.encode().decode(), parse_constant=refuse)
    assert text.rstrip("\n").isprintable()


def test_json_is_valid_in_any_locale(start, launch) -> None:
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "printf", r"\303\274\n").out.strip()
    process = start("log", "--json", handle, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})

    assert json.loads(process.communicate(timeout=60)[0])["text"] == "\xfc"


def test_a_closed_terminal_of_messages_is_not_an_error(start) -> None:
    """As in `launch list 2>&1 | head -n 0`."""
    read, write = os.pipe()
    process = start("run", "-s", "local", "--wait", "utils.sh", "--", "true", stderr=write)
    os.close(write)
    os.close(read)
    process.communicate(timeout=60)

    assert process.returncode == 0


def test_the_whole_command_on_a_terminal(shell, launch) -> None:
    """A program prints control characters, and exits with an error that has them."""
    script = r"""printf 'x\033]0;t\007\302\2332J\n'; printf '{"message": {"message": "e\\u001b[2Je"}}' \
        > $TORCHELASTIC_ERROR_FILE; exit 3"""
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "sh", "-c", script).out.strip()
    for command in (("log", handle), ("status", handle), ("describe", handle), ("list",), ("log", "-f", handle)):
        shown = _on_terminal(*command)
        assert not any(raw in shown for raw in RAW), (command, shown)


def _on_terminal(*words: str) -> str:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "airflow_provider_launch.cli", *words]
    process = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    parts: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                parts.append(data)
        except OSError:
            return  # the other side is closed

    reader = threading.Thread(target=read)
    reader.start()
    process.wait(60)
    reader.join(60)
    os.close(ours)
    return b"".join(parts).decode("utf-8", "replace")


# ---- files ---------------------------------------------------------------------------------------------------------

DEEP = "[" * 100_000
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def make_fifo(path) -> None:
    os.mkfifo(path)


FILES = {
    "deep": lambda path: path.write_text(DEEP),
    "laughs": lambda path: path.write_text(LAUGHS),
    "itself": lambda path: path.write_text("a: &a [*a]"),
    "large": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 40),
    "binary": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "fifo": make_fifo,
    "twice": lambda path: path.write_text("c: launch-local://\nc: launch-docker://\n"),
    "open": lambda path: (path.write_text("c: launch-local://\n"), path.chmod(0o666)),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.timeout(60)
def test_a_hostile_file_of_connections_is_refused(launch, shell, monkeypatch, kind) -> None:
    path = shell / "c.yaml"
    FILES[kind](path)
    monkeypatch.setenv("LAUNCH_CONNECTIONS", str(path))
    ran = launch("list", "-c", "c")

    assert ran.code == 2, ran.err
    assert "c.yaml" in ran.err
    assert len(ran.err) < 2000


@pytest.mark.parametrize("kind", ["deep", "laughs", "itself", "large", "binary", "fifo", "twice"])
@pytest.mark.timeout(60)
def test_a_hostile_file_of_an_app_is_refused(launch, shell, kind) -> None:
    FILES[kind](shell / "app.yaml")
    ran = launch("run", "-s", "local", "--dryrun", "app.yaml")

    assert ran.code == 2, ran.err
    assert len(ran.err) < 2000


def test_json_has_a_connection_once(launch, shell, monkeypatch) -> None:
    (shell / "c.json").write_text('{"c": "launch-local://", "c": "launch-docker://"}')
    monkeypatch.setenv("LAUNCH_CONNECTIONS", str(shell / "c.json"))

    assert "it has 'c' twice" in launch("list", "-c", "c").err


@pytest.mark.parametrize("kind", ["large", "binary"])
def test_a_hostile_configuration_is_refused(launch, shell, kind) -> None:
    FILES[kind](shell / ".launchconfig")
    ran = launch("run", "-s", "local", "--dryrun", "utils.echo")

    assert ran.code == 2, ran.err
    assert ".launchconfig" in ran.err


def test_a_configuration_that_others_can_write_is_ignored(launch, shell) -> None:
    """In a shared directory such as /tmp it could name a component of another user, which then runs as this user."""
    path = shell / ".launchconfig"
    path.write_text("[local]\ngrace_s = 77\n[cli:run]\ncomponent = utils.echo\n")
    path.chmod(0o666)
    ran = launch("run", "-s", "local", "--dryrun", "--", "--msg", "hello")

    assert ran.code == 2
    assert "can be written by all users; run chmod o-w" in ran.err
    assert "name a component" in ran.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_configuration_of_another_user_is_ignored_unless_it_is_named(launch, shell, monkeypatch) -> None:
    path = shell / ".launchconfig"
    path.write_text("[local]\ngrace_s = 77\n")
    os.chown(path, 65534, 65534)
    ignored = launch("run", "-s", "local", "--dryrun", "--json", "utils.echo")
    monkeypatch.setenv("LAUNCHCONFIG", str(path))
    named = launch("run", "-s", "local", "--dryrun", "--json", "utils.echo")

    assert "belongs to user 65534; the file is ignored; LAUNCHCONFIG=<path>" in ignored.err
    assert ignored.data["cfg"].get("grace_s") != 77
    assert named.data["cfg"]["grace_s"] == 77


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("--tail", "9" * 30),
        ("--regex", "a{99999999999999999999}"),
        ("--regex", "(" * 5000),
        ("--regex", "("),
    ],
    ids=["tail", "repeat", "deep", "open"],
)
def test_absurd_filters_are_no_fault(launch, words) -> None:
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "true").out.strip()
    ran = launch("log", *words, handle)

    assert ran.code == (0 if "--tail" in words else 2)
    assert ("is not a regular expression: " in ran.err) == ("--regex" in words)


def test_many_ranges_of_replicas_are_refused(launch) -> None:
    ran = launch("log", f"local://torchx/app-1/r/{','.join(['0-999999'] * 50)}")

    assert ran.code == 2
    assert "name fewer" in ran.err


@pytest.mark.parametrize(
    ("key", "value"),
    [("id", 10**12), ("id", -1), ("id", "x"), ("attempt", 10**15), ("code", "\x1b[2J"), ("start", 1e300)],
)
def test_a_program_that_forges_its_state_damages_its_own_app_only(launch, shell, key, value) -> None:
    """A replica with a huge number would make each reader of logs read as many."""
    handle = launch("run", "-s", "local", "--wait", "utils.sh", "--", "true").out.strip()
    (path,) = (shell.parent / "launch").rglob(f"*{handle.rpartition('/')[2]}*/state.json")
    state = json.loads(path.read_text())
    state["replicas"][0][key] = value
    path.write_text(json.dumps(state))
    ran = launch("log", handle)

    assert ran.code == 4, ran.err
    assert launch("list", "--json").code == 0
