"""Results that are larger than those of a scheduler, which programs pack."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines import program
from airflow_provider_launch.pipelines.parameters import returned_values, tracked
from airflow_provider_launch.pipelines.run_step import find_step, run_step
from airflow_provider_launch.pipelines.validation import load
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES
from airflow_provider_launch.specs.errors import InvalidAppError

NUMBERS = list(range(1000))
PATHS = [f"/data/of/the/project/2026-01/part-{at:05}.parquet" for at in range(1200)]
STEPS = f"""
    dag:
      start_at: function
      steps:
        function: {{type: task, command: mine_of_packed.give, returns: [numbers, paths], next: shell}}
        shell: {{type: task, command_type: shell, command: export numbers="$({sys.executable} -c 'print(list(range(1000)))')", returns: [numbers], next: document}}
        document: {{type: task, command_type: shell, command: '{sys.executable} mine_of_packed.py > "$LAUNCH_RESULT_PATH"', returns: [paths], next: success}}
    """
MODULE = f"""
import json


def give():
    return list(range(10)), {PATHS!r}


if __name__ == "__main__":
    print(json.dumps({{"paths": give()[1]}}))
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("function", {"numbers": NUMBERS[:10], "paths": PATHS}),
        ("shell", {"numbers": NUMBERS}),
        ("document", {"paths": PATHS}),
    ],
)
def test_a_local_step_returns_64_kb(write, name: str, expected: dict[str, object]) -> None:
    assert RESULT_LIMIT_BYTES < len(json.dumps(expected)) <= 64 * 1024
    write(MODULE, "mine_of_packed.py")
    model = load(write(STEPS))
    step, _ = find_step(model, name)

    assert run_step(model, step, {}, elements=[]) == (0, expected)


@pytest.mark.parametrize(
    ("size", "expected"), [(program.PLAIN, False), (program.PLAIN + 1, True)], ids=["at the limit", "above it"]
)
def test_only_large_results_are_packed(size: int, expected: bool) -> None:
    text = json.dumps("x" * (size - 2))

    assert ("$packed" in program.packed(text)) is expected


def test_a_result_that_does_not_become_shorter_stays_as_it_is() -> None:
    text = json.dumps({"key": base64.b85encode(os.urandom(2400)).decode()})

    assert program.packed(text) == text


def test_a_declared_result_that_is_too_large_is_an_error_of_the_step(tmp_path: Path) -> None:
    path = Path(program.__file__)
    Path(tmp_path, "mine.py").write_text(
        "import os, base64\ndef f(): return base64.b85encode(os.urandom(9000)).decode()\n"
    )
    env = {"PATH": os.environ["PATH"], "LAUNCH_RESULT_PATH": str(tmp_path / "result")}
    command = [sys.executable, str(path), "function", "mine.f", "x"]

    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert "put large values into the catalog" in ran.stderr


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (base64.b85encode(zlib.compress(b'"' + b"x" * 70_000 + b'"')).decode(), "more than 65536 bytes"),
        ("~~~", "bad base85|cannot be decompressed|overflow"),
        ("\x00", "bad base85"),
        (base64.b85encode(zlib.compress(b"[" * 200 + b"]" * 200)).decode(), "nested"),
    ],
    ids=["too large", "damaged", "not base85", "too deep"],
)
def test_a_packed_result_is_checked(data: str, expected: str) -> None:
    with pytest.raises(InvalidAppError, match=expected):
        returned_values({"$packed": data}, None, given={}, step="s")


def test_a_packed_value_that_cannot_be_stored_is_refused() -> None:
    data = base64.b85encode(zlib.compress(b'{"__type": 1}')).decode()

    with pytest.raises(InvalidAppError, match="reserves"):
        returned_values({"$packed": data}, None, given={}, step="s")


@pytest.mark.parametrize(
    "text",
    ['{"__classname__": "airflow.sdk.Asset"}', '{"a": [{"__type": "x", "__var": {}}]}', '"\\u0000"'],
)
@pytest.mark.parametrize("wrap", [lambda values: values, lambda values: {"$env": values}], ids=["result", "variables"])
def test_a_metric_that_airflow_cannot_store_is_refused(text, wrap) -> None:
    """The check of the result sees only a text, whose value would create an object where the XCom is read."""
    with pytest.raises(InvalidAppError, match=r"Airflow reserves|cannot be stored"):
        tracked(wrap({"MAGNUS_TRACK_loss": text}), "fit")


def test_a_metric_may_be_any_value() -> None:
    document = {"MAGNUS_TRACK_loss": "0.5", "MAGNUS_TRACK_best_STEP_2": {"a": [1, "x"]}, "MAGNUS_TRACK_name": "word {"}
    assert tracked(document, "fit") == {"loss": 0.5, "best_STEP_2": {"a": [1, "x"]}, "name": "word {"}
