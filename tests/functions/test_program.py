"""The program that runs a function in a replica, as a process of its own, in each Python."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.functions import Replica, function_app, program, value_of
from airflow_provider_launch.functions.app import _program
from airflow_provider_launch.schedulers.environment import port_variable
from airflow_provider_launch.schedulers.result_document import parse_result
from airflow_provider_launch.specs import AppDef, Resource, macros
from airflow_provider_launch.specs.errors import InvalidAppError

OLD = ["2.7", "3.6", "3.7"]
PYTHONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


def find_python(version: str) -> str | None:
    """Return an interpreter of this version, without a search in the environment of the tests."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    return next((str(each) for each in reversed(found) if each), None)


def python_of(version: str) -> str:
    return find_python(version) or pytest.skip(f"Python {version} is not installed")


class Ran:
    """How a replica ended, and what it wrote."""

    def __init__(self, folder: Path, app: AppDef, python: str = sys.executable, **variables: str) -> None:
        self.folder = folder
        role = app.roles[0]
        values = macros.Values("", "app", "0", "TORCHX_RANK0_HOST").apply(role)
        (self._result, self._error) = folder / "result", folder / "error.json"
        env = {
            **values.env,
            "PATH": os.environ["PATH"], "LAUNCH_ROLE": role.name, "LAUNCH_REPLICA_ID": "0", "LAUNCH_NUM_REPLICAS": "1",
            "LAUNCH_RESULT_PATH": str(self._result), "TORCHELASTIC_ERROR_FILE": str(self._error), **variables,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [python, *values.args], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> Ran:
        try:
            self.out, self.err = self.process.communicate(timeout=150)
        finally:
            self.process.kill()
        self.code = self.process.returncode
        return self

    @property
    def document(self) -> Any:
        return json.loads(self._result.read_text()) if self._result.exists() else None

    @property
    def error(self) -> str:
        return str(json.loads(self._error.read_text())["message"]["message"])

    @property
    def left(self) -> list[str]:
        return sorted(
            path.name for path in self.folder.iterdir() if path.name not in {"dag.py", "nearby.py", "__pycache__"}
        )


def run(folder: Path, app: AppDef, python: str = sys.executable, **variables: str) -> Ran:
    return Ran(folder, app, python, **variables).end()


EVERYTHING = """
from __future__ import annotations
import asyncio
import dataclasses
import typing

SCALE = 2

@dataclasses.dataclass
class Point:
    x: list[int] | None
    LIMIT: typing.ClassVar[int] = 3

def helper(x: int | None = SCALE, /, *more: str, key: dict[str, int] = {}) -> Point:
    return Point([x])

if True:
    @asyncio.coroutine if False else dataclasses.dataclass
    class _Unused: pass

    async def f(lr: float, /, n=SCALE, *rest, replica, word: str = "w$", **more) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"p": helper(n).x, "lr": lr, "rest": rest, "word": word, "more": more, "rank": replica.id}
"""


@pytest.mark.parametrize("version", PYTHONS)
def test_it_runs_in_each_python(module_of, tmp_path, version) -> None:
    app = function_app(module_of(EVERYTHING).f, [0.5, 3, 4], {"a": None, "b": [True, {"c": "ü\n"}]})
    ran = run(tmp_path, app, python_of(version))

    assert (ran.code, ran.err) == (0, "")
    assert value_of(ran.document) == {
        "p": [3], "lr": 0.5, "rest": [4], "word": "w$", "more": {"a": None, "b": [True, {"c": "ü\n"}]}, "rank": 0,
    }  # fmt: skip
    assert ran.left == ["result"]


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_is_named(module_of, tmp_path, version) -> None:
    ran = run(tmp_path, function_app(module_of("def f():\n    pass\n").f), python_of(version))

    assert ran.code == 1
    assert f"a function needs Python 3.8 or newer in the image, and this is {version}." in ran.err


def test_its_syntax_is_that_of_python_3_8() -> None:
    """For machines on which no such Python is installed."""
    ast.parse(_program(), feature_version=(3, 8))


def test_the_program_leaves_room_for_the_function() -> None:
    """A job definition of AWS Batch has 24 KB, and holds the program twice."""
    size = len(base64.b64encode(zlib.compress(_program().encode(), 9)))

    assert size < 5700


@pytest.mark.parametrize("version", ["oldest", "newest"])
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_the_function_find_its_helpers(module_of, tmp_path, method, version) -> None:
    """With a helper that only lives in memory, a pool starts its processes for ever."""
    text = """
import multiprocessing
SCALE = 10
class Point:
    def __init__(self, x):
        self.x = x
def work(point):
    return Point(point.x * SCALE)
def f(method, replica):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return [point.x for point in pool.map(work, [Point(1), Point(2)])], pool.__class__.__name__
"""
    found = [each for each in map(find_python, PYTHONS) if each]
    ran = run(tmp_path, function_app(module_of(text).f, [method]), found[0 if version == "oldest" else -1])

    assert (ran.code, ran.err) == (0, "")
    assert value_of(ran.document) == [[10, 20], "Pool"]
    assert ran.left == ["result"]


def test_it_runs_where_nothing_can_be_written(module_of, tmp_path, monkeypatch) -> None:
    app = function_app(module_of("import os\ndef g():\n    return 1\ndef f():\n    return g(), os.getcwd()\n").f)
    ran = run(tmp_path, app, TORCHELASTIC_ERROR_FILE="/dev/null", TMPDIR="/proc")

    assert value_of(ran.document)[0] == 1


def test_modules_of_a_workspace_are_found_in_the_working_directory(module_of, tmp_path) -> None:
    (tmp_path / "nearby.py").write_text("x = 5\n")
    module = module_of("def f():\n    import nearby\n    return nearby.x\n", "dags/dag.py")

    assert value_of(run(tmp_path, function_app(module.f)).document) == 5


ERRORS = {
    "raise ValueError('bad\\nvery')": "ValueError: bad\n  very\n  dag.py:3, in f: raise ValueError('bad\\nvery')",
    "g()": "ZeroDivisionError: division by zero\n  dag.py:3, in f: g()\n  dag.py:6, in g: return 1 / 0",
    "import no_such": (
        "ModuleNotFoundError: No module named 'no_such'; install it in the image, or send it with a workspace\n"
        "  dag.py:3, in f: import no_such"
    ),
    "replica.port('x')": "KeyError: \"port_map has no port 'x'\"\n  dag.py:3, in f: replica.port('x')",
    "replica.rank0_host": (
        "RuntimeError: the replicas of this app do not know of each other; give it a port in 'port_map'\n"
        "  dag.py:3, in f: replica.rank0_host"
    ),
    "raise SystemExit('no data')": "no data",
    "raise SystemExit('x' * 2000)": "x" * 1500,
}


@pytest.mark.parametrize(("code", "message"), ERRORS.items())
def test_an_error_is_in_the_log_and_in_the_error_file(module_of, tmp_path, code, message) -> None:
    module = module_of(f"\ndef f(replica):\n    {code}\n\ndef g():\n    return 1 / 0\n")
    app = function_app(module.f)
    Path(module.__file__).unlink()
    ran = run(tmp_path, app)

    assert ran.code == 1
    assert ran.error == message
    assert message.split(": ", 1)[-1].partition("\n")[0].partition(";")[0] in ran.err
    # Frames of the program are shown only where the function has called it.
    assert ("launch_function" in ran.err) == code.startswith("replica.")
    if "dag.py" in message:
        assert f'File "{module.__file__}", line 3, in f\n    {code}' in ran.err
    assert ran.document is None


LINES = {
    "carriage returns": b"K = 1\r\rdef g(x):\r    return 1 / (x - K)  # HERE\rdef f():\r    return g(K)  # CALL\r",
    "line ends of Windows": (
        b"K = 1\r\n\r\ndef g(x):\r\n    s = '''a\r\nb'''\r\n    return 1 / (x - K)  # HERE\r\ndef f():\r\n"
        b"    return g(K)  # CALL\r\n"
    ),
    "form feeds": (
        b"K = 1\n\x0c\ndef g(x):\n    y = 'a\x0cb'\n    return 1 / (x - K)  # HERE\n\x0c\ndef f():\n"
        b"    return g(K)  # CALL\n"
    ),
    "an encoding": (
        "# coding: cp1251\nK = 1\n# привет\ndef g(x):\n    s = 'привет'; return 1 / (x - K)  # HERE\ndef f():\n"
        "    return g(K)  # CALL\n"
    ).encode("cp1251"),
    "tabs": b"K = 1\nif 1:\n\tdef g(x):\n\t\treturn 1 / (x - K)  # HERE\n\tdef f():\n\t\t# c\n\t\treturn g(K)  # CALL\n",
    "decorators": (
        b"import functools\nK = 1\ndef d(h):\n    @functools.wraps(h)\n    def w(*a):\n        return h(*a)\n    return w\n"
        b"@d\n@d\ndef g(x):\n    return 1 / (x - K)  # HERE\ndef f():\n    return g(K)  # CALL\n"
    ),
    "a statement of three lines": (
        b"def g(x):\n    return (1 +\n        1 / (x - 1)  # HERE\n    )\ndef f():\n    return g(1)  # CALL\n"
    ),
    "a class of the function": (
        b"class E(BaseException):\n    def __str__(self):\n        return 1 / 0\ndef g():\n    raise E  # HERE\ndef f():\n"
        b"    g()  # CALL\n"
    ),
    "a task that is cancelled": (
        b"import asyncio\nasync def g():\n    raise asyncio.CancelledError  # HERE\nasync def f():\n    await g()  # CALL\n"
    ),
}


@pytest.mark.parametrize("source", LINES.values(), ids=LINES)
def test_an_error_names_the_line_in_each_kind_of_file(module_of, tmp_path, source) -> None:
    module = module_of(source)
    ran = run(tmp_path, function_app(module.f))
    lines = re.split(rb"\r\n|\r|\n", source)

    assert ran.code == 1
    for mark in ("HERE", "CALL"):
        line = next(number for number, each in enumerate(lines, 1) if mark.encode() in each)
        assert f'dag.py", line {line}, in ' in ran.err
        # Python 3.10 raises a copy of a CancelledError, without the lines of the function; the log has them.
        if sys.version_info >= (3, 11) or b"Cancelled" not in source:
            assert re.search(rf"  dag\.py:{line}, in [fg]: ", ran.error)


def test_an_error_is_kept_where_the_function_has_closed_its_streams(module_of, tmp_path) -> None:
    text = "import sys\ndef f():\n    sys.stdout.close()\n    sys.stderr.close()\n    raise ValueError('x')\n"
    ran = run(tmp_path, function_app(module_of(text).f))

    assert ran.code == 1
    assert ran.error == "ValueError: x\n  dag.py:5, in f: raise ValueError('x')"


def test_an_error_is_in_the_log_where_the_error_file_cannot_be_written(module_of, tmp_path) -> None:
    file = tmp_path / "missing" / "error.json"
    ran = run(tmp_path, function_app(module_of("def f():\n    return 1 / 0\n").f), TORCHELASTIC_ERROR_FILE=str(file))

    assert ran.code == 1
    assert re.search(r"^the error file cannot be written: \[Errno 2\] .*/missing/error\.json'$", ran.err, re.MULTILINE)
    assert ran.err.endswith("\nZeroDivisionError: division by zero\n")


def test_syntax_of_a_newer_python_is_named_with_both(module_of, tmp_path) -> None:
    module = module_of("\ndef f(x):\n    match x:\n        case 1:\n            return 2\n")
    ran = run(tmp_path, function_app(module.f, [1]), python_of("3.9"))

    assert ran.code == 1
    assert ran.error.startswith("SyntaxError: invalid syntax (dag.py, line 3); the image has Python 3.9.")
    assert "match x:" in ran.err


def test_an_exit_code_is_that_of_the_function(module_of, tmp_path) -> None:
    module = module_of("import sys\ndef f(code):\n    sys.exit(code)\n")

    assert run(tmp_path, function_app(module.f, [99])).code == 99
    ran = run(tmp_path, function_app(module.f, [0]))
    assert (ran.code, value_of(ran.document)) == (0, None)


def test_an_interrupt_ends_the_process_by_its_signal(module_of, tmp_path) -> None:
    """It is not an error of the function."""
    ran = run(tmp_path, function_app(module_of("def f():\n    raise KeyboardInterrupt\n").f))

    assert ran.code == -signal.SIGINT
    assert ran.document is None


ENDS = """
import time
def f(seconds):
    try:
        print("begun", flush=True)
        time.sleep(seconds)
    finally:
        time.sleep(0.3)
        print("cleaned up", flush=True)
"""


def test_its_finally_runs_when_the_app_is_cancelled(module_of, tmp_path) -> None:
    ran = Ran(tmp_path, function_app(module_of(ENDS).f, [60]))
    assert ran.process.stdout is not None
    assert ran.process.stdout.readline() == "begun\n"
    ran.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    # A second signal does not interrupt it.
    ran.process.send_signal(signal.SIGTERM)
    ran.end()

    assert (ran.code, ran.out, ran.err) == (143, "cleaned up\n", "")
    assert ran.document is None


def test_a_process_that_the_function_forks_ends_by_the_signal(module_of, tmp_path) -> None:
    """Without a cleanup of the function, which its own process does.

    Python itself does not act on it: its handler waits for the end of `acquire`, so that a pool was never terminated.
    """
    text = """
import os, signal, time
def f():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, getattr(signal.getsignal(signal.SIGTERM), "name", "own").encode())
            time.sleep(60)
        finally:
            os._exit(7)
    handler = os.read(reader, 9).decode()  # Python drops a signal that arrives during the fork
    os.kill(child, signal.SIGTERM)
    return handler, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
    ran = run(tmp_path, function_app(module_of(text).f))

    assert (ran.code, ran.err) == (0, "")
    assert value_of(ran.document) == ["SIG_DFL", -signal.SIGTERM]


def test_only_replica_0_writes_unless_all_are_gathered(module_of, tmp_path) -> None:
    function = module_of("def f(replica):\n    return replica.id\n").f

    assert run(tmp_path, function_app(function, num_replicas=2), LAUNCH_REPLICA_ID="1").document is None
    ran = run(tmp_path, function_app(function, num_replicas=2, gather=True), LAUNCH_REPLICA_ID="1")
    assert value_of(ran.document) == 1


def test_records_of_a_tracker_stay(module_of, tmp_path) -> None:
    text = "import json, os\ndef f():\n    json.dump({'metadata': {'a': 1}}, open(os.environ['LAUNCH_RESULT_PATH'], 'w'))\n    return 3\n"
    ran = run(tmp_path, function_app(module_of(text).f))

    assert ran.document == {"metadata": {"a": 1}, "value": 3}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[1]"], ids=["cut", "not a text", "a list"])
def test_a_result_replaces_records_that_cannot_be_read(module_of, tmp_path, content) -> None:
    text = "import os\ndef f(n):\n    open(os.environ['LAUNCH_RESULT_PATH'], 'wb').write(bytes(n))\n    return 3\n"
    ran = run(tmp_path, function_app(module_of(text).f, [[*content]]))

    assert (ran.code, ran.err) == (0, "")
    assert ran.document == {"value": 3}


class Scalar:
    """As a number of NumPy, or a loss of torch."""

    shape = ()

    def item(self) -> float:
        return 0.25


@pytest.mark.parametrize(
    "value", [None, [1, {"a": (2, "x")}], Scalar(), {"loss": [Scalar()]}, "x" * 3000, [0.5] * 9000]
)
def test_values_come_back(value) -> None:
    found = value_of(json.loads(json.dumps(program.document(value, "f"))))

    assert found == program.plain(value, "value")
    assert len(json.dumps(program.document(value, "f"))) <= program.LARGEST_FILE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": {1}}, r"f() returned a value that JSON cannot hold: value['a'] is a set ({1}); use sorted()"),
        (Path("x"), "value is a PosixPath (PosixPath('x')); use str()"),
        (Resource(1, 0, 1), "; use dataclasses.asdict()"),
        (object(), "; return texts, numbers, lists and dicts, or the address of the data"),
        ({"a": {2: 1}}, "f() returned a value that JSON cannot hold: value['a'] has the key 2, which is not a text"),
        ("x" * 70_000, "f() returned more than 65536 bytes; store it, and return its address"),
    ],
)
def test_a_value_that_cannot_come_back_is_named(value, text) -> None:
    with pytest.raises(InvalidAppError) as caught:
        value_of(program.document(value, "f"))

    assert text in str(caught.value)


@pytest.mark.parametrize("more", ["", "0" * 3000], ids=["plain", "packed"])
@pytest.mark.parametrize("number", ["float('nan')", "float('-inf')", "Scalar()"])
def test_nan_and_infinity_become_null_with_one_warning(module_of, tmp_path, caplog, number, more) -> None:
    """As in the results of other apps: the loss of a training that diverged is an ordinary value."""
    text = f"""
class Scalar:
    shape = ()
    def item(self):
        return float("inf")
def f(more):
    return {{"steps": [1.5, {number}, float("inf")], "more": more}}
"""
    ran = run(tmp_path, function_app(module_of(text).f, [more]))
    data = (tmp_path / "result").read_bytes()

    assert ran.code == 0
    assert ("packed" in ran.document) == bool(more)
    assert value_of(parse_result(data, len(data))) == {"steps": [1.5, None, None], "more": more}
    assert [record.getMessage() for record in caplog.records] == [
        "the result has NaN or Infinity at 'value.steps[1]' and in 1 more places, which JSON does not have: null is "
        "stored instead"
    ]


@pytest.mark.parametrize(
    "document", [None, 3, {}, {"packed": "!"}, {"packed": "x" * 20}, {"packed": 3}, {"refused": 3}, [{"value": 1}]]
)
def test_a_document_of_another_program_is_refused(document) -> None:
    with pytest.raises(InvalidAppError, match=r"has returned no value|cannot be read"):
        value_of(document)


def test_a_packed_value_has_a_limit() -> None:
    bomb = base64.b85encode(zlib.compress(b"[" + b"0," * 10_000_000 + b"0]", 9)).decode()
    with pytest.raises(InvalidAppError, match="has more than 65536 bytes"):
        value_of({"packed": bomb})


def test_a_packed_value_is_checked_as_any_result() -> None:
    with pytest.raises(InvalidAppError, match="Airflow reserves"):
        value_of(program.document([{"__var": "x" * 3000}], "f"))


@pytest.mark.parametrize(("count", "size"), [(1, 0), (3, 7), (4, 2), (7, 100)])
def test_the_parts_of_all_replicas_are_the_whole(count, size) -> None:
    replicas = [Replica({"LAUNCH_REPLICA_ID": str(k), "LAUNCH_NUM_REPLICAS": str(count)}) for k in range(count)]
    parts = [replica.part(range(size)) for replica in replicas]

    assert [item for part in parts for item in part] == [*range(size)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("name", ["x", "my-port", "p.1", "Größe"])
def test_a_port_has_the_variable_of_the_launcher(name) -> None:
    replica = Replica({"LAUNCH_ROLE": "my role", port_variable("my role", name): "7"})

    assert replica.port(name) == 7
