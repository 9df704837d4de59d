"""Shell commands of any form return exported variables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.parameters import returned_values, tracked
from airflow_provider_launch.pipelines.shell import shell_arguments
from airflow_provider_launch.specs.errors import InvalidAppError

DIFFICULT = 'it\'s "quoted" \\ back\tslash $HOME\nnew line äöü 中 {{ x }}'


def run(command: str, returns=None, shell: str = "sh", **given):
    env = {"PATH": os.environ["PATH"]}
    for name, value in given.items():
        text = value if isinstance(value, str) else json.dumps(value)
        env |= {name: text, f"MAGNUS_PRM_{name}": text, f"LAUNCH_PARAM_{name}": text}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        env["LAUNCH_RESULT_PATH"] = str(result)
        arguments = shell_arguments(command, returns, parameters=given)
        ran = subprocess.run([shell, *arguments], env=env, capture_output=True, text=True, check=False)
        document = json.loads(result.read_text()) if result.exists() and result.stat().st_size else None
    return ran, None if ran.returncode else returned_values(document, returns, given=given, step="s")


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize(
    ("command", "returns", "expected"),
    [
        ("export MAGNUS_PRM_x=1", None, {"x": 1}),
        ("export x=1 y='two words'", ["x", "y"], {"x": 1, "y": "two words"}),
        (
            'export MAGNUS_PRM_spam=World && export MAGNUS_PRM_eggs=\'{"ham": "No"}\'',
            None,
            {"spam": "World", "eggs": {"ham": "No"}},
        ),
        ("export x=1 # a comment", ["x"], {"x": 1}),
        ("export x=1\ncat <<EOF\nEOF\n", ["x"], {"x": 1}),
        ("false\nexport x=1", ["x"], {"x": 1}),
        ("export x=1; exit 0", ["x"], {"x": 1}),
        ("export LAUNCH_PARAM_mixedCase=1", None, {"mixedCase": 1}),
        ("echo nothing", None, {}),
        ('echo \'{"x": [1]}\' > "$LAUNCH_RESULT_PATH"', ["x"], {"x": [1]}),
    ],
)
def test_what_is_exported_is_handed_back(shell, command, returns, expected):
    ran, values = run(command, returns, shell)

    assert (ran.returncode, values) == (0, expected), ran.stderr


def test_every_sign_survives():
    ran, values = run('export y="$x"', ["y"], x=DIFFICULT)

    assert values == {"y": DIFFICULT}, ran.stderr


def test_what_a_task_was_given_is_not_handed_back_again():
    _, values = run("export MAGNUS_PRM_b=2", None, a=1, b=1, c=DIFFICULT, d=[1, 2])

    assert values == {"b": 2}


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize(
    "given",
    [{"y": "a\nx=2\n\nMAGNUS_PRM_x=2\n\nb", "x": 1}, {"x": "2\n\nb"}, {"x": "2\nb"}, {"x": "a\n\nx=2"}],
    ids=["in another variable", "start of the value", "first line", "last line"],
)
def test_a_changed_value_is_returned_if_another_value_looks_like_it(shell, given):
    """The given variables are compared as one text, in which any value can look like a variable."""
    _, values = run("export x=2", ["x"], shell, **given)
    _, prefixed = run("export MAGNUS_PRM_x=2", None, shell, **given)

    assert (values, prefixed) == ({"x": 2}, {"x": 2})


def test_a_declared_value_that_was_left_alone_stays():
    _, values = run("true", ["a"], a=[1])

    assert values == {"a": [1]}


@pytest.mark.parametrize(("command", "code"), [("exit 3", 3), ("false", 1), ("export x=1; kill -9 $$", -9)])
def test_the_exit_code_is_that_of_the_command(command, code):
    ran, _ = run(command, ["x"])

    assert ran.returncode == code


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize(("end", "code", "values"), [("true", 0, {"x": 1}), ("false", 1, None)])
def test_a_command_may_clean_up_at_its_end(shell, end, code, values):
    """Its trap was replaced."""
    ran, found = run(f"trap 'echo cleaned' EXIT; export x=1; {end}", ["x"], shell)

    assert (ran.returncode, ran.stdout, found) == (code, "cleaned\n", values), ran.stderr


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
@pytest.mark.parametrize("command", ["true\nif fi", "true\nnosuchcommand"])
def test_an_error_has_the_line_of_the_command(shell, command):
    ran, _ = run(command, None, shell)

    assert ran.returncode, ran.stderr
    assert re.search(r"\b2:", ran.stderr), ran.stderr


def test_a_tracked_variable_is_a_metric_and_not_a_value(tmp_path):
    result = tmp_path / "result"
    arguments = shell_arguments("export x=1 MAGNUS_TRACK_loss=0.5 MAGNUS_TRACK_loss_STEP_3=0.2", ["x"])
    env = {"PATH": os.environ["PATH"], "LAUNCH_RESULT_PATH": str(result)}
    subprocess.run(["sh", *arguments], env=env, check=True)

    document = json.loads(result.read_text())

    assert returned_values(document, ["x"], given={}, step="s") == {"x": 1}
    assert tracked(document, "s") == {"loss": 0.5, "loss_STEP_3": 0.2}


def test_a_declared_value_that_is_missing_is_an_error():
    with pytest.raises(InvalidAppError, match="did not return y, which it declares in 'returns'; it returned x"):
        run("export x=1", ["x", "y"])


def test_a_variable_with_json_hands_on_no_key_that_airflow_reserves() -> None:
    """The text of a variable may be JSON, which was not checked with the result."""
    with pytest.raises(InvalidAppError, match="'__type' in x"):
        returned_values({"$env": {"LAUNCH_PARAM_x": '{"__type": "y"}'}}, None, given={}, step="s")
