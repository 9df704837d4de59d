"""`launch log`: which lines, in which order, and in which form."""

from __future__ import annotations

import json
import time

import pytest

from airflow_provider_launch.cli.log import parse_wanted
from airflow_provider_launch.cli.output import Output
from airflow_provider_launch.specs.errors import LaunchError, MalformedAppHandleException

TWO_ROLES = """\
name: two
roles:
- {name: a, image: "", entrypoint: sh, args: [-c, "for i in 1 2 3; do echo a$i; done; echo bad >&2"]}
- {name: b, image: "", entrypoint: sh, args: [-c, "echo b${replica_id}"], num_replicas: 3}
"""


@pytest.fixture
def app(launch, shell) -> str:
    (shell / "two.yaml").write_text(TWO_ROLES)
    return launch("run", "-s", "local", "--wait", "two.yaml").out.strip()


pytestmark = pytest.mark.engine("local")


def texts(ran) -> list[str]:
    return ran.out.splitlines()


def test_all_replicas_with_their_prefix(launch, app) -> None:
    ran = launch("log", app)

    assert sorted(texts(ran)) == ["[a/0] a1", "[a/0] a2", "[a/0] a3", "[a/0] bad", "[b/0] b0", "[b/1] b1", "[b/2] b2"]
    assert ran.err == ""


@pytest.mark.parametrize(
    ("suffix", "found"),
    [
        ("/b", {"[b/0] b0", "[b/1] b1", "[b/2] b2"}),
        ("/b/1", {"[b/1] b1"}),
        ("/b/0,2", {"[b/0] b0", "[b/2] b2"}),
        ("/b/1-2", {"[b/1] b1", "[b/2] b2"}),
        ("/b/1/", {"[b/1] b1"}),
    ],
)
@pytest.mark.parametrize("follow", [[], ["-f"]])
def test_a_role_or_replicas(launch, app, suffix, found, follow) -> None:
    assert {*texts(launch("log", *follow, app + suffix))} == found


@pytest.mark.parametrize("suffix", ["/c", "/b/3", "/a/1-5"])
def test_a_replica_that_is_not_there_is_refused(launch, app, suffix) -> None:
    ran = launch("log", app + suffix)

    assert ran.code == 2
    assert "a (0 to 0), b (0 to 2)" in ran.err


def test_filters(launch, app) -> None:
    assert texts(launch("log", "--streams", "stderr", app + "/a")) == ["[a/0] bad"]
    assert texts(launch("log", "--regex", "[23]$", app + "/a")) == ["[a/0] a2", "[a/0] a3"]
    assert texts(launch("log", "--tail", "1", "--streams", "stdout", app + "/a")) == ["[a/0] a3"]
    assert texts(launch("log", "--tail", "0", app)) == []
    assert launch("log", "--regex", "(", app).code == 2
    assert launch("log", "--tail", "-1", app).code == 2


def test_tail_counts_the_lines_that_match(launch, app) -> None:
    assert texts(launch("log", "--tail", "2", "--regex", "a", "--streams", "stdout", app + "/a")) == [
        "[a/0] a2",
        "[a/0] a3",
    ]


def test_json_has_one_document_per_line(launch, app) -> None:
    row, *_ = launch("log", "--json", app + "/a").rows

    assert 0 <= time.time() - row.pop("time") < 600
    assert row == {
        "role": "a", "replica": 0, "attempt": 0, "stream": "stdout", "container": "", "text": "a1",
    }  # fmt: skip


def test_lines_of_all_replicas_are_in_order_of_time(launch, shell) -> None:
    script = "sleep 0.$((1 + 2 * ${replica_id})); for n in 1 2; do echo $n of ${replica_id}; sleep 0.4; done"
    role = {"name": "r", "image": "", "entrypoint": "sh", "args": ["-c", script], "num_replicas": 2}
    (shell / "app.json").write_text(json.dumps({"name": "ordered", "roles": [role]}))
    handle = launch("run", "-s", "local", "--wait", "app.json").out.strip()

    for options in ([], ["--tail", "2"], ["-f"]):
        assert texts(launch("log", *options, handle)) == [f"[r/{k}] {n} of {k}" for n in (1, 2) for k in (0, 1)]


def test_follow_shows_the_tail_and_what_follows(launch, app) -> None:
    ran = launch("log", "-f", "--tail", "1", "--streams", "stdout", app + "/a")

    assert texts(ran) == ["[a/0] a3"]
    assert ran.err.splitlines()[-1].endswith(": SUCCEEDED")


def test_follow_waits_for_the_end(launch) -> None:
    handle = launch("run", "-s", "local", "utils.sh", "--", "sh", "-c", "echo 1; sleep 1; echo 2").out.strip()

    assert texts(launch("log", "-f", handle)) == ["[sh/0] 1", "[sh/0] 2"]


@pytest.mark.parametrize(
    "text", ["", "app-1", "local://c", "local://c/app/role/x", "local://c/app/r/1/2", "local://c/a/r/1-"]
)
def test_what_is_no_handle(text) -> None:
    with pytest.raises(MalformedAppHandleException):
        parse_wanted(text)


def test_absurd_numbers_are_refused_at_once() -> None:
    with pytest.raises(LaunchError):
        parse_wanted("local://c/a/r/0-99999999999")


# ---- on a terminal -------------------------------------------------------------------------------------------------


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def isatty(self) -> bool:
        return True


def test_each_replica_has_its_colour(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal, output = Terminal(), Output(as_json=False)
    for key in ("a/0", "a/1", "a/0"):
        output.line(key, key, "x", to=terminal)

    first, second, third = terminal.text.splitlines()
    assert first == third
    assert first.startswith("\x1b[36m[a/0]\x1b[0m x")
    assert not second.startswith("\x1b[36m")


def test_a_program_cannot_control_the_terminal() -> None:
    """A line of a program may otherwise move the cursor, change the title, or answer for the user."""
    terminal = Terminal()
    Output(as_json=False).line("a/0", "a/0", "\x1b]0;title\x07\x1b[2J\ttab \x1b[31mred\x1b[0m", to=terminal)

    assert terminal.text.endswith("\\x1b]0;title\\x07\\x1b[2J\ttab \x1b[31mred\x1b[0m\n")
