"""The program that runs in apps, and files of earlier steps."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines import apps, program

OWN = "def step():\n    import report\n    return {'who': report.WHO}\n"


def obey_modes() -> None:
    """Let a program of root write only where the modes of folders allow it."""
    pr_capbset_drop, cap_dac_override = 24, 1
    ctypes.CDLL(None).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0)


def run(data: Path, *arguments: str, text: bool = False, **variables: str) -> subprocess.CompletedProcess[str]:
    script = ["-c", apps._program_text()] if text else [program.__file__]
    env = {
        "PATH": os.environ["PATH"], "HOME": str(data), "LAUNCH_RESULT_PATH": str(data.parent / "result"), **variables
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, *script, *arguments],
        cwd=data,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        preexec_fn=obey_modes,
    )


def result(data: Path) -> object:
    return json.loads((data.parent / "result").read_text())


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The code folder of the pipeline, and the files of its steps."""
    code, data = tmp_path / "code", tmp_path / "data"
    code.mkdir()
    data.mkdir()
    (code / "own.py").write_text(OWN)
    (code / "report.py").write_text("WHO = 'author'\n")
    return code, data


@pytest.mark.parametrize("text", [False, True], ids=["file", "text"])
@pytest.mark.parametrize("name", ["report", "own", "json", "inspect", "pydantic", "asyncio"])
def test_a_module_that_an_earlier_step_left_is_not_run(folders: tuple[Path, Path], name: str, text: bool) -> None:
    code, data = folders
    (data / f"{name}.py").write_text("WHO = 'earlier step'\nopen('ran', 'w')\ndef step(): return {'who': WHO}\n")

    ran = run(data, "function", "own.step", text=text, LAUNCH_CODE_DIR=str(code), LAUNCH_IN_DATA_DIR="1")

    assert ran.returncode == 0, ran.stderr
    assert result(data) == {"who": "author"}
    assert not (data / "ran").exists()


def test_an_optional_module_is_not_taken_from_the_files_of_steps(folders: tuple[Path, Path]) -> None:
    """A module that is not installed would be found there."""
    code, data = folders
    (code / "own.py").write_text(
        "def step():\n    try:\n        import not_installed_here\n    except ImportError:\n        return {'who': 'author'}\n"
        "    return {'who': 'earlier step'}\n"
    )
    (data / "not_installed_here.py").write_text("")

    ran = run(data, "function", "own.step", LAUNCH_CODE_DIR=str(code), LAUNCH_IN_DATA_DIR="1")

    assert ran.returncode == 0, ran.stderr
    assert result(data) == {"who": "author"}


def test_the_current_folder_has_the_code_where_no_other_is_named(folders: tuple[Path, Path]) -> None:
    code, _ = folders

    ran = run(code, "function", "own.step")

    assert ran.returncode == 0, ran.stderr
    assert result(code) == {"who": "author"}


NOTEBOOK_CELLS = [
    "import report, os\nopen('written', 'w').close()\nwho = report.WHO",
    "names = sorted(name for name in globals() if name in ('sorted', 'given', 'undeclared'))",
]


def notebook(path: Path, sources: Sequence[str] = NOTEBOOK_CELLS) -> None:
    cells = [
        {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None, "id": f"c{n}"}
        for n, source in enumerate(sources)
    ]
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def test_a_notebook_sees_declared_names_and_modules_of_its_author(folders: tuple[Path, Path]) -> None:
    pytest.importorskip("nbclient")
    code, data = folders
    notebook(code / "book.ipynb")
    for name in ("report", "ipykernel_launcher", "ipykernel", "pydantic", "matplotlib_inline"):
        (data / f"{name}.py").write_text("WHO = 'earlier step'\nopen('ran', 'w')\n")
    (data / "launch-notebook-values.json").symlink_to(data / "overwritten")
    parameters = {"given": 1, "undeclared": 2, "sorted": "x", "class": 1, "no name": 2}

    ran = run(
        data, "notebook", "book.ipynb", "out.ipynb", "", "who", "names",
        LAUNCH_CODE_DIR=str(code), LAUNCH_IN_DATA_DIR="1",
        LAUNCH_PARAMETERS=json.dumps(parameters), LAUNCH_DECLARED='["given", "class"]',
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr[-2000:]
    assert result(data) == {"who": "author", "names": ["given"]}
    assert sorted(path.name for path in data.iterdir() if path.suffix != ".py" and path.name[0] != ".") == [
        "launch-notebook-values.json",
        "out.ipynb",
        "written",
    ]
    assert len(json.loads((data / "out.ipynb").read_text())["cells"]) == len(NOTEBOOK_CELLS) + 3


def listed(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_notebooks_that_run_at_once_keep_their_values(tmp_path: Path) -> None:
    """Elements of a map, other runs and other DAGs start in the same folder, that of the pipeline; it is read-only."""
    pytest.importorskip("nbclient")
    code = tmp_path / "code"
    code.mkdir()
    notebook(code / "ten.ipynb", ["y = x * 10"])
    code.chmod(0o555)
    assert subprocess.run(["touch", code / "x"], preexec_fn=obey_modes, capture_output=True, check=False).returncode

    def ten(x: int) -> object:
        own = tmp_path / str(x)
        own.mkdir()
        variables = {"HOME": own, "TMPDIR": own, "LAUNCH_RESULT_PATH": own / "result"}
        ran = run(
            code, "notebook", "ten.ipynb", "", "", "y",
            LAUNCH_PARAMETERS=json.dumps({"x": x}), **{name: str(path) for name, path in variables.items()},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-2000:]
        return json.loads((own / "result").read_text()), listed(own)

    with ThreadPoolExecutor() as pool:
        found = [*pool.map(ten, range(1, 4))]

    # IPython writes the file, which is always the same, into a home folder that has none.
    readme = ".ipython/profile_default/startup/README"
    assert found == [({"y": x * 10}, {"result", readme}) for x in range(1, 4)]
    assert listed(code) == {"ten.ipynb"}


@pytest.mark.parametrize("folder", ["scratch", "x" * 120], ids=["short", "long"])
def test_kernels_of_notebooks_share_no_ports(tmp_path: Path, folder: str) -> None:
    """Two that start at once chose the same port, and one hung until its start timed out."""
    pytest.importorskip("nbclient")
    data, scratch = tmp_path / "data", tmp_path / folder
    data.mkdir()
    scratch.mkdir()
    cell = (
        "import ipykernel; found = ipykernel.get_connection_info(unpack=True); t, ip = found['transport'], found['ip']"
    )
    notebook(data / "ports.ipynb", [cell])

    ran = run(data, "notebook", "ports.ipynb", "", "", "t", "ip", TMPDIR=str(scratch))

    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads((tmp_path / "result").read_text())
    assert found["t"] == "ipc"
    assert not Path(found["ip"]).parent.exists()


def test_lines_of_a_notebook_come_while_it_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    data, seen = tmp_path / "data", tmp_path / "seen"
    data.mkdir()
    # The cell ends only after its first line was read here.
    wait = f"import os, time\nprint('first')\nwhile not os.path.exists({str(seen)!r}):\n    time.sleep(0.05)\nprint('last')"
    notebook(data / "slow.ipynb", [wait])
    env = {"PATH": os.environ["PATH"], "HOME": str(data), "LAUNCH_RESULT_PATH": str(tmp_path / "result")}
    command = [sys.executable, program.__file__, "notebook", "slow.ipynb", "", ""]
    with subprocess.Popen(command, cwd=data, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        stop = threading.Timer(120, process.kill)
        stop.start()
        try:
            first = process.stdout.readline()
            seen.touch()
            rest = process.stdout.read()
        finally:
            stop.cancel()

    assert (first, rest, process.returncode) == ("first\n", "last\n", 0)


def test_a_notebook_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "home").mkdir()
    notebook(data / "wrong.ipynb", ["1 / 0"])

    ran = run(data, "notebook", "wrong.ipynb", "", "", "y", HOME=str(tmp_path / "home"), TMPDIR=str(data))

    assert "ZeroDivisionError" in ran.stderr
    assert listed(data) == {"wrong.ipynb"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("'verified'", "ignored the returned str, because the step has no 'returns'"),
        ("{'model': object()}", "ignored the returned values, which are not JSON"),
        ("{'text': __import__('os').urandom(5000).hex()}", "ignored the returned values of 10012 bytes"),
    ],
)
def test_a_value_that_is_not_declared_does_not_fail_a_function(
    folders: tuple[Path, Path], value: str, message: str
) -> None:
    """Its work is done. runnable lets users leave `returns` out."""
    code, _ = folders
    (code / "mine.py").write_text(f"def step():\n    return {value}\n")

    ran = run(code, "function", "mine.step")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert message in ran.stdout
    assert not (code.parent / "result").exists()


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [("3", int, 3), (3, int, 3), (None, int, None), ("0.5", float, 0.5), (["1"], list[int], ["1"]), ("x", None, "x")],
)
def test_plain_types_are_converted_where_pydantic_is_missing(
    monkeypatch: pytest.MonkeyPatch, value: object, hint: object, expected: object
) -> None:
    """An image needs nothing but Python."""
    monkeypatch.setitem(sys.modules, "pydantic", None)

    assert program.cast(value, hint) == expected


class Own:
    """A class that pydantic does not know."""


def test_a_value_stays_as_it_is_where_pydantic_has_no_converter() -> None:
    own = Own()

    assert program.cast(own, Own) is own
    assert program.cast("x", Own) == "x"


@pytest.mark.parametrize("hint", ["NoSuch", "list[", "int | 5"])
def test_a_hint_that_cannot_be_evaluated_is_ignored(folders: tuple[Path, Path], hint: str) -> None:
    """Its name may be imported for type checkers only."""
    code, _ = folders
    head = "" if hint == "list[" else "from __future__ import annotations\n"
    (code / "mine.py").write_text(f"{head}def step(x: {hint!r}):\n    return {{'y': x}}\n")

    ran = run(code, "function", "mine.step", "y", LAUNCH_PARAMETERS='{"x": 3}')

    assert (ran.returncode, ran.stderr) == (0, "")
    assert result(code) == {"y": 3}


def test_a_notebook_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "nbclient", None)

    with pytest.raises(
        SystemExit, match=r"^a notebook needs three packages where it runs: pip install nbclient .*nbcl"
    ):
        program.run_notebook("gone.ipynb", "", "", {}, [], str(tmp_path))


def test_variables_that_a_program_has_set_are_json_or_text() -> None:
    before = {"LAUNCH_PARAM_same": "1", "LAUNCH_PARAM_x": "1"}
    after = {**before, "LAUNCH_PARAM_x": "word {", "LAUNCH_PARAM_y": "[1]", "MAGNUS_TRACK_loss": "nan?", "OTHER": "2"}

    assert program.changed_variables(before, after, []) == {"x": "word {", "y": [1], "MAGNUS_TRACK_loss": "nan?"}
    assert program.changed_variables(before, after, ["y"]) == {"y": [1], "MAGNUS_TRACK_loss": "nan?"}


@pytest.mark.parametrize("data", [b"\xff" * 5000, b"x" * 70_000], ids=["not text", "too large"])
def test_a_result_that_is_a_mistake_is_left_to_the_launcher(tmp_path: Path, data: bytes) -> None:
    """Its message names the step and the cure."""
    (tmp_path / "result").write_bytes(data)

    program.pack_result(str(tmp_path / "result"))

    assert (tmp_path / "result").read_bytes() == data


ARRAYS = {
    "array('d', [1, 2.5])": [1.0, 2.5],
    "{'a': array('i', [1]), 'b': [array('i', [2])]}": {"a": [1], "b": [[2]]},
    "memoryview(bytes(6)).cast('B', (2, 3))": [[0, 0, 0], [0, 0, 0]],
    "Scalar()": 7,
    "np.ones((2, 2), dtype='float32')": [[1.0, 1.0], [1.0, 1.0]],
    "{'count': np.int64(3), 'all': [np.float32(0.5)], 'is': np.bool_(True)}": {"count": 3, "all": [0.5], "is": True},
}


@pytest.mark.parametrize("value", ARRAYS)
def test_arrays_and_their_numbers_are_lists_and_numbers(folders: tuple[Path, Path], value: str) -> None:
    """At any depth; NumPy, PyTorch and Python's own arrays have `tolist`, some numbers only `item`."""
    if "np." in value:
        pytest.importorskip("numpy")
    code, _ = folders
    head = "import numpy as np\n" if "np." in value else ""
    head += "from array import array\n\n\nclass Scalar:\n    def item(self):\n        return 7\n\n\n"
    (code / "mine.py").write_text(f"{head}def step():\n    return {value}\n")

    ran = run(code, "function", "mine.step", "found")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads((code.parent / "result").read_text()) == {"found": ARRAYS[value]}


def test_a_declared_value_that_is_not_json_fails_a_function(folders: tuple[Path, Path]) -> None:
    code, _ = folders
    (code / "mine.py").write_text("def step():\n    return object()\n")

    ran = run(code, "function", "mine.step", "model")

    assert ran.returncode == 1
    assert ran.stderr.startswith("the returned values must be JSON (text, numbers, lists, dicts): ")


def test_a_value_that_contains_itself_is_not_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    loop: dict[str, object] = {}
    loop["loop"] = loop
    monkeypatch.setenv("LAUNCH_RESULT_PATH", str(tmp_path / "result"))

    with pytest.raises(SystemExit, match=r"^the returned values must be JSON .*: Circular reference detected"):
        program.write_result(loop)
    program.write_result(loop, is_declared=False)

    assert "ignored the returned values, which are not JSON (Circular reference detected)" in capsys.readouterr().out
    assert not (tmp_path / "result").exists()


def test_its_text_leaves_room_in_a_job_definition():
    """AWS Batch takes 24 KiB for an app with all its texts."""
    assert len(apps._program_text()) < 9 * 1024
