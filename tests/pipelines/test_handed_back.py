"""Results of programs, valid and invalid; without Airflow."""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.parameters import as_value, reduced, returned_values
from airflow_provider_launch.pipelines.plugin import Node
from airflow_provider_launch.specs.errors import InvalidAppError

DEEP = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1), ('{"a": [1.5]}', {"a": [1.5]}), ("word", "word"), ("", ""),
        (DEEP, DEEP), ("[" * 1800, "[" * 1800), ("[" * 100_000, "[" * 100_000),
        ("NaN", "NaN"), ("1e999", "1e999"), ("9" * 30, "9" * 30), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_a_variable_is_json_or_text(text: str, expected: object) -> None:
    """A deeply nested document failed in the parser, or passed all checks."""
    assert as_value(text) == expected
    assert returned_values({"$env": {"x": text}}, ["x"], given={}, step="s") == {"x": expected}


def test_variables_that_are_none_are_values() -> None:
    assert returned_values({"$env": 5}, None, given={}, step="s") == {"$env": 5}


def test_a_sum_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidAppError, match="an integer has more than 64 bits"):
        reduced([{"x": 2**62}] * 4, "sum")
    assert reduced([{"x": 2**61}] * 2, "sum") == {"x": 2**62}


def node(script: str, folder: Path, lines: list[str]) -> Node:
    return Node("step", "step", "", "shell", [sys.executable, "-c", script], {}, str(folder), show=lines.append)


def executed(script: str, folder: Path, lines: list[str]) -> object:
    """Run it in a thread, because a hang would block all tests."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(node(script, folder, lines).execute())
        except Exception as error:  # noqa: BLE001 - of the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    assert found, "it hangs"
    return found[0]


PATH = "import os; path = os.environ['LAUNCH_RESULT_PATH']; "


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", {}),
        ("open(path, 'w').write('{\"x\": 1}')", {"x": 1}),
        ("os.mkfifo(path)", "not a regular file"),
        ("os.symlink('/etc/hostname', path)", "not a regular file"),
        ("os.mkdir(path)", "not a regular file"),
        ("open(path, 'w').truncate(10**11)", "has 100000000000 bytes"),
        ("open(path, 'w').write('[' * 900 + ']' * 900)", "cannot be stored"),
        ("open(path, 'wb').write(bytes([0xff]))", "cannot be stored"),
        ("open(path, 'w').write('[1]')", "other than a JSON object"),
    ],
)
def test_the_result_of_a_plug_in_is_a_small_file(tmp_path: Path, script: str, expected: object) -> None:
    found = executed(PATH + script, tmp_path, [])

    if isinstance(expected, str):
        assert isinstance(found, InvalidAppError)
        assert expected in str(found)
    else:
        assert found == expected


def test_lines_of_a_plug_in_may_be_anything(tmp_path: Path) -> None:
    lines: list[str] = []
    script = "import sys; w = sys.stdout.buffer.write; w(b'a\\xffb\\n\\0\\r\\nlast'); w(b'x' * 40_000_000)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert executed(script, tmp_path, lines) == {}

    assert lines[:2] == ["a\ufffdb", "\ufffd"]
    assert [len(line) for line in lines[2:]] == [16 * 2**20, 16 * 2**20, 40_000_004 - 32 * 2**20]
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 200 * 2**20
