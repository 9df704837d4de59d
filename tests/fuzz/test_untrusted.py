"""Parsers of untrusted data: any bytes give a value of bounded size, or a documented error.

A few hundred examples of each, the same each time; 10 000 with `LAUNCH_SOAK=1`, `LAUNCH_FUZZ=20` new ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_launch.pipelines import PipelineError, validate
from airflow_provider_launch.pipelines.validation import load_document
from airflow_provider_launch.schedulers._kit import file_log
from airflow_provider_launch.schedulers.docker.log_frames import FrameParser, LineReader
from airflow_provider_launch.schedulers.kubernetes import log_lines, result_container
from airflow_provider_launch.schedulers.kubernetes.containers import SideContainer
from airflow_provider_launch.schedulers.logs import LogLine, Stream
from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result
from airflow_provider_launch.schedulers.slurm import records
from airflow_provider_launch.specs.errors import InvalidAppError, LaunchError
from airflow_provider_launch.specs.failures import ErrorReply
from airflow_provider_launch.util import untrusted
from airflow_provider_launch.util.http_answer import Body
from tests.support.repeats import often

FACTOR = int(os.environ.get("LAUNCH_FUZZ", "0"))
fuzzed = settings(
    max_examples=often(200, 10_000) * max(FACTOR, 1),
    derandomize=FACTOR == 0,
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)

LETTERS = st.characters(exclude_categories=()) | st.sampled_from('\0\ud800\udfff"\\{}[]:,0159.eE-+ \n\r\t|')
TEXTS = st.text(LETTERS, max_size=200)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**63, 1e308, float("nan")])
KEYS = TEXTS | st.sampled_from(["__classname__", "__id__", "__type", "__var", "__data__", "__version__"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
DEEP = st.integers(1, 3000).map(lambda levels: "[" * levels + "]" * levels)
DIGITS = st.integers(1, 6000).map(lambda count: "9" * count)
JSON = DOCUMENTS.map(lambda value: json.dumps(value, ensure_ascii=True)) | TEXTS | DEEP | DIGITS
BYTES = JSON.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=300)


def stored(value: Any) -> Any:
    """Return the value after the JSON of a database that refuses NUL and halves of surrogate pairs."""
    text = json.dumps(value, allow_nan=False)
    found = json.loads(text)
    assert untrusted.clean_json(found) == found
    return found


@fuzzed
@given(BYTES)
def test_documents(data):
    with contextlib.suppress(untrusted.UntrustedError):
        json.dumps(untrusted.clean_json(untrusted.parse_json(data, 10_000)), allow_nan=False)


@fuzzed
@given(DOCUMENTS)
def test_clean_documents_are_storable(value):
    with contextlib.suppress(ValueError):
        stored(untrusted.clean_json(json.loads(json.dumps(value, allow_nan=False))))


@fuzzed
@given(TEXTS | DIGITS | st.integers().map(str), st.integers(), st.integers())
def test_integers(text, low, high):
    with contextlib.suppress(untrusted.UntrustedError):
        assert low <= untrusted.parse_int(text, low, high) <= high


@fuzzed
@given(st.binary(max_size=300) | st.binary(max_size=50).map(lambda data: zlib.compress(data * 100)), st.integers(0, 50))
def test_compressed_data(data, cut):
    for each in (data, data[:cut]):
        with contextlib.suppress(untrusted.UntrustedError):
            assert len(untrusted.inflate(each, 2000)) <= 2000


@fuzzed
@given(BYTES)
def test_results(data):
    with contextlib.suppress(InvalidAppError):
        stored(parse_result(data[:RESULT_LIMIT_BYTES], len(data)))


@fuzzed
@given(BYTES, BYTES, BYTES, TEXTS | DIGITS, st.integers(0, 400))
def test_results_in_a_log(before, within, after, report, size):
    log = b"launch-result begin\n".join([before, within]) + b"launch-result end\n" + after
    found = result_container.result_bytes(log, size)
    assert found is None or len(found) == size
    ended = SideContainer("x", True, True, False, 0, "", report, started=None, finished=None)
    with contextlib.suppress(InvalidAppError):
        assert 0 <= (result_container.size_of(ended, "main/0") or 0) < 2**63


@fuzzed
@given(JSON | DOCUMENTS.map(lambda x: json.dumps({"message": {"message": "x", "extraInfo": x, "errorCode": x}})))
def test_error_replies(text):
    reply = ErrorReply.parse(text)
    if reply is not None:
        stored([reply.error_text, reply.exit_code_text, reply.local_time_text])


class Bytes:
    """A file of these bytes."""

    inode, modified = 1, 5.0

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, offset: int, count: int) -> bytes:
        assert offset >= 0
        assert count >= 0
        return self.data[offset : offset + count]


ODD = st.sampled_from(["inf", "nan", "-1", "1_0", "²", "1e400", "9" * 5000])
COLUMNS = st.integers(0, 10**6) | ODD | NUMBERS | TEXTS
ENTRIES = st.lists(st.tuples(COLUMNS, COLUMNS, COLUMNS).map(lambda parts: " ".join(map(str, parts))), max_size=9).map(
    lambda lines: "\n".join(lines).encode("utf-8", "replace")
)


@fuzzed
@given(ENTRIES | st.binary(max_size=300), st.integers(0, 400), st.lists(st.integers(0, 10**6), max_size=5).map(sorted))
def test_the_index_of_times(data, position, ends):
    times, at, covered = file_log.line_times(Bytes(data), Stream.STDOUT, position, ends, 5.0)

    assert len(times) == len(ends)
    assert 0 <= covered <= len(ends)
    assert at >= 0
    assert all(math.isfinite(time) for time in times)


@fuzzed
@given(st.binary(max_size=300), st.lists(st.integers(1, 50), max_size=9))
def test_chunked_bodies(data, cuts):
    body, at = Body(chunked=True), 0
    size = 0
    with contextlib.suppress(ValueError):
        for cut in [*cuts, len(data)]:
            size += len(body.feed(data[at : at + cut]))
            at += cut
    assert size <= len(data)


SIZES = st.sampled_from([b"-1", b"5", b"ffffffff", b"0x5", b"1_0", b"", b"+3", b"9" * 2000])


@fuzzed
@given(st.lists(SIZES, max_size=5), st.binary(max_size=30))
def test_sizes_of_chunks(sizes, rest):
    body = Body(chunked=True)
    with contextlib.suppress(ValueError):
        for size in sizes:
            assert len(body.feed(size + b"\r\n" + rest)) <= len(size) + 2 + len(rest)


STAMPS = st.sampled_from(
    [
        b"2026-01-31T12:00:00.000000001Z ",
        b"2026-01-31T12:00:00 ",
        b"2026-01-31T12:00:00.5+02:00 ",
        b"0001-01-01T00:00:00Z ",
    ]
) | st.binary(max_size=40)
FRAMES = st.lists(
    st.tuples(st.integers(0, 255), STAMPS, st.binary(max_size=30)).map(
        lambda parts: bytes([parts[0], 0, 0, 0]) + len(parts[1] + parts[2]).to_bytes(4, "big") + parts[1] + parts[2]
    ),
    max_size=8,
).map(b"".join)


LENGTHS = st.sampled_from([0, 1, 2**20, 2**20 + 1, 2**31, 2**32 - 1])
DAMAGED = st.tuples(FRAMES, st.integers(0, 255), LENGTHS, st.binary(max_size=60)).map(
    lambda parts: parts[0] + bytes([parts[1], 0, 0, 0]) + parts[2].to_bytes(4, "big") + parts[3]
)
POSITIONS = st.none() | st.tuples(st.sampled_from([0, 1_769_860_800_000_000_001, 2**70]), st.integers(0, 3))


@fuzzed
@given(FRAMES | DAMAGED | st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=9), POSITIONS, POSITIONS)
def test_frames_of_logs(data, cuts, stdout, stderr):
    """A position in the middle of a frame, a wrong stream, a length of 4 GB: lines are never longer than the data."""
    reader, parser, lines, at = LineReader(stdout, stderr, 0), FrameParser(), [], 0
    with contextlib.suppress(OSError, ValueError):
        for cut in [*cuts, len(data)]:
            reader.take(parser.feed(data[at : at + cut]), lines, 1000)
            at += cut
        lines += reader.end(complete=True)
    assert sum(len(line.text) for line in lines) <= len(data)
    assert all(isinstance(line.time, float) and math.isfinite(line.time) for line in lines)


NODE_LINES = st.lists(st.tuples(STAMPS, st.binary(max_size=30)).map(b"".join), max_size=8).map(b"\n".join)
LASTS = st.none() | st.just([0, 0, 1]) | st.lists(st.integers(), min_size=3, max_size=3)


@fuzzed
@given(NODE_LINES | st.binary(max_size=300), st.integers(1, 50), LASTS, st.booleans())
def test_lines_of_a_node(data, size, last, whole):
    reader = log_lines.LineReader({"last": last}, whole=whole)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    lines: list[LogLine] = []
    with contextlib.suppress(ValueError):
        reader.take(log_lines.split(pieces), lines, 1000)
        lines += reader.rest()
    assert sum(len(line.text) for line in lines) <= len(data)
    assert all(math.isfinite(line.time) for line in lines)
    json.dumps(reader.cursor(), allow_nan=False)


FIELDS = TEXTS | st.sampled_from(["1", "RUNNING", "launch:a:b", "a/id", "a/claim", "a/alive", "1.5"])
ROWS = TEXTS | st.lists(FIELDS, min_size=3, max_size=9).map("|".join)
LISTED = TEXTS | st.lists(FIELDS, min_size=3, max_size=5).map("\t".join)
ANSWERS = st.tuples(
    st.sampled_from(["now 5", "now x", ""]),
    st.lists(ROWS, max_size=6).map("\n".join),
    st.just("files"),
    st.lists(LISTED, max_size=6).map("\n".join),
).map("\n".join)


@fuzzed
@given(ANSWERS)
def test_answers_of_slurm(text):
    with contextlib.suppress(ValueError, LaunchError):
        records.parse_observation(text)
    records.parse_accounts(text)


CURSORS = DOCUMENTS | st.fixed_dictionaries(
    {"at": st.just([0, 0]), "stdout": DOCUMENTS | st.lists(NUMBERS, max_size=5), "stderr": DOCUMENTS}
)


@fuzzed
@given(CURSORS)
def test_cursors(cursor):
    """Airflow stores them unchanged; a damaged one is an error, never a wrong offset."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        assert isinstance(file_log.position_in(cursor, (0, 0), Stream.STDOUT), int)


PARTS = st.sampled_from(
    [
        "a: &x 1", "b: *x", "<<: *x", "dag:", "  start_at: s", "  steps:", "    s:", "      type: task",
        "      next: success", "? [1]", "- x", "!!int y", "!!binary é", "2001-99-99", "1:00:00", "0x", ".nan: .inf",
        "{", "]", "&a [*a]", "%TAG", "---",
    ]
)  # fmt: skip
YAML = st.lists(PARTS | TEXTS, max_size=12).map("\n".join)


@fuzzed
@given(YAML | JSON)
def test_files_of_pipelines(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))

    assert all(problem.text for problem in validate(path))


EVERY_FIELD: dict[str, Any] = {
    "name": "n",
    "executor": {"type": "local", "config": {"env": {"A": 1}, "cpu": 1, "mounts": [], "cfg": {"grace_s": 1}}},
    "parameters": {"p": 1},
    "catalog": {"type": "file-system", "config": {"location": "/x", "project": ["a"]}},
    "dag": {
        "start_at": "a",
        "steps": {
            "a": {
                "type": "task", "command": "m.f", "args": {"x": 1}, "returns": [{"name": "y", "kind": "metric"}],
                "secrets": ["S"], "catalog": {"get": "a", "put": ["b"]}, "executor": {"type": "local", "config": {}},
                "overrides": {"local": {"cpu": 2}}, "max_attempts": 2, "retry_delay_s": 1, "template": True,
                "command_type": "python", "notebook_output_path": "o", "on_failure": "c", "next": "b",
            },
            "b": {
                "type": "map", "iterate_on": "p", "iterate_as": "q", "reducer": {"x": "max"}, "parallelism": 2,
                "next": "c", "branch": {"start_at": "a", "steps": {"a": {"type": "stub", "next": "success"}}},
            },
            "c": {
                "type": "conditional", "parameter": "p", "next": "success",
                "branches": {"x": {"start_at": "a", "steps": {"a": {"type": "stub", "next": "success"}}}},
                "default": {"start_at": "a", "steps": {"a": {"type": "stub", "next": "success"}}},
            },
        },
    },
}  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in paths(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


@fuzzed
@given(
    st.sampled_from(paths(EVERY_FIELD)[1:]),
    DOCUMENTS | st.dictionaries(st.integers() | st.booleans() | st.none() | TEXTS, DOCUMENTS, max_size=3),
)
def test_any_value_in_any_field_of_a_pipeline(tmp_path_factory, path, value):
    """Each is accepted, or refused by problems; no value ends the check."""
    document = replaced(EVERY_FIELD, path, value)

    with contextlib.suppress(PipelineError):
        assert load_document(document, tmp_path_factory.getbasetemp(), "fuzzed").graph.steps
