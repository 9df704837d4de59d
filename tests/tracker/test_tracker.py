"""Trackers in a job: created from the environment, and their stored records."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import types

import pytest

from airflow_provider_launch.runtime.tracking import FsspecResultTracker
from airflow_provider_launch.specs.errors import MissingDependencyError
from airflow_provider_launch.tracker import AppRun, TrackerArtifact, TrackerSource, app_run_from_env
from airflow_provider_launch.tracker.api import tracker_config_env_var_name, trackers_from_environ
from airflow_provider_launch.tracker.backend.fsspec import FsspecTracker, create

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
    for name in ("TORCHX_JOB_ID", "TORCHX_PARENT_RUN_ID", "TORCHX_TRACKERS", "LAUNCH_RESULT_PATH"):
        monkeypatch.delenv(name, raising=False)
    AppRun.run_from_env.cache_clear()
    yield
    AppRun.run_from_env.cache_clear()


@pytest.fixture
def tracker(tmp_path):
    return create(str(tmp_path / "runs"))


RUN = "docker://conn/train-x1y2"


def test_a_run_is_kept_and_read_by_another(tracker, tmp_path):
    tracker.add_metadata(RUN, lr=0.1, tags=["a"])
    tracker.add_metadata(RUN, lr=0.2)
    tracker.add_artifact(RUN, "model", "s3://b/m.pt", {"format": "torch"})
    tracker.add_artifact(RUN, "a/b c", "/x")
    tracker.add_source(RUN, "airflow://dag/run/task")
    tracker.add_source(RUN, "other", "data")
    other = create(f"file://{tmp_path}/runs")

    assert other.metadata(RUN) == {"lr": 0.2, "tags": ["a"]}
    assert other.artifacts(RUN) == {
        "model": TrackerArtifact("model", "s3://b/m.pt", {"format": "torch"}),
        "a/b c": TrackerArtifact("a/b c", "/x", None),
    }
    assert list(other.sources(RUN, "data")) == [TrackerSource("other", "data")]
    assert len(list(other.sources(RUN))) == 2
    assert list(other.run_ids()) == [RUN]
    assert list(other.run_ids(parent_run_id="airflow://dag/run/task")) == [RUN]
    assert list(other.run_ids(parent_run_id="no")) == []


def test_an_unknown_run_is_empty(tracker):
    assert (tracker.metadata("x"), tracker.artifacts("x"), list(tracker.sources("x")), list(tracker.run_ids())) == (
        {}, {}, [], [],
    )  # fmt: skip


def test_a_store_in_memory_works():
    tracker = FsspecTracker(fsspec.filesystem("memory"), "/runs-of-a-test/")
    tracker.add_metadata("r", a=1)

    assert tracker.metadata("r") == {"a": 1}


def test_the_run_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHX_JOB_ID", RUN)
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "airflow://dag/run/task")
    monkeypatch.setenv("TORCHX_TRACKERS", "fsspec")
    monkeypatch.setenv("TORCHX_TRACKER_FSSPEC_CONFIG", str(tmp_path))
    run = app_run_from_env()
    run.add_metadata(a=1)

    assert run is app_run_from_env()
    assert run.job_id() == RUN
    assert run.sources() == [TrackerSource("airflow://dag/run/task")]
    assert create(str(tmp_path)).metadata(RUN) == {"a": 1}


def test_outside_of_a_launch_a_run_does_nothing():
    run = app_run_from_env()
    run.add_metadata(a=1)

    assert (run.id, run.backends, list(run.sources())) == ("<UNDEFINED>", [], [])


def test_a_tracker_by_module_and_factory(monkeypatch):
    module = types.ModuleType("my_trackers")
    module.make = lambda config: ("made", config)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_trackers", module)
    monkeypatch.setenv("TORCHX_TRACKERS", "my_trackers:make")
    monkeypatch.setenv(tracker_config_env_var_name("my_trackers:make"), "c")

    assert tracker_config_env_var_name("my_trackers:make") == "TORCHX_TRACKER_MY_TRACKERS_MAKE_CONFIG"
    assert trackers_from_environ() == [("made", "c")]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("no_such", "no entry point"),
        ("json:decoder", "not a function"),
        ("fsspec", "needs a URL"),
        ("no.mod:x", "no.mod:x"),
    ],
)
def test_a_tracker_that_cannot_be_made_is_left_out_and_reported(monkeypatch, caplog, name, word):
    """The run continues: a failed tracker is not worth stopping the training."""
    monkeypatch.setenv("TORCHX_TRACKERS", name)

    assert trackers_from_environ() == []
    assert word in caplog.text


# ---- result ----------------------------------------------------------------------------------------------------------


def test_notes_become_part_of_the_result(monkeypatch, tmp_path):
    path = tmp_path / "result"
    path.write_text('{"words": 3}')
    monkeypatch.setenv("LAUNCH_RESULT_PATH", str(path))
    run = AppRun("r", [])
    run.add_artifact("model", "/m", {"format": "torch"})
    run.add_artifact("plain", "/p")
    run.add_metadata(loss=0.5)

    assert json.loads(path.read_text()) == {
        "words": 3,
        "artifacts": {"model": {"path": "/m", "metadata": {"format": "torch"}}, "plain": {"path": "/p"}},
        "metadata": {"loss": 0.5},
    }


@pytest.mark.parametrize("before", ["[1]", "no json", '{"artifacts": 5}', '{"x": "' + "y" * 4090 + '"}'])
def test_a_result_that_takes_no_notes_stays(monkeypatch, tmp_path, caplog, before):
    path = tmp_path / "result"
    path.write_text(before)
    monkeypatch.setenv("LAUNCH_RESULT_PATH", str(path))
    AppRun("r", []).add_artifact("model", "/m")

    assert path.read_text() == before
    assert "model" in caplog.text


def test_the_first_note_makes_the_result(monkeypatch, tmp_path):
    """A local program has no file before it writes one."""
    path = tmp_path / "result"
    monkeypatch.setenv("LAUNCH_RESULT_PATH", str(path))
    AppRun("r", []).add_metadata(loss=0.5)

    assert json.loads(path.read_text()) == {"metadata": {"loss": 0.5}}


# ---- results by key --------------------------------------------------------------------------------------------------


def test_results_by_key(tmp_path):
    tracker = FsspecResultTracker(str(tmp_path))
    tracker["attempt_1/out"] = {"accuracy": 0.2}

    assert tracker["attempt_1/out"]["accuracy"] == 0.2
    assert tracker["none"] == {}
    with pytest.raises(ValueError, match="points outside of"):
        tracker["../x"] = {}


def test_results_by_the_number_of_a_trial(tmp_path):
    tracker = FsspecResultTracker(str(tmp_path))
    tracker.put(1, l2norm=1.2, bias=0)

    assert tracker.get(1) == tracker[1] == tracker["1"] == {"l2norm": 1.2, "bias": 0}
    assert tracker[0] == {}


@pytest.mark.parametrize("run_id", ["", ".", ".."])
def test_a_run_id_that_leads_out_of_its_directory_is_refused(tracker, tmp_path, run_id):
    with pytest.raises(ValueError, match="cannot name a directory"):
        tracker.add_metadata(run_id, lr=0.1)

    assert list(tmp_path.iterdir()) == []


DAMAGED = {
    "cut off": "[",
    "a number": "5",
    "other fields": '{"x": 1}',
    "wrong types": '{"source_run_id": 5, "artifact_name": [], "name": 5, "path": {}, "metadata": 1}',
    "deep": "[" * 100_000,
    "digits": "9" * 10_000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_hides_no_other_run(tracker, tmp_path, text):
    """All runs share the directory, so each of them can write any record."""
    tracker.add_source(RUN, "parent")
    tracker.add_artifact("bad", "sound", "/x")
    for kind in ("sources", "artifacts", "metadata"):
        folder = tmp_path / "runs" / "bad" / kind
        folder.mkdir(exist_ok=True)
        (folder / "damaged.json").write_text(text)

    assert list(tracker.run_ids(parent_run_id="parent")) == [RUN]
    assert tracker.artifacts("bad") == {"sound": TrackerArtifact("sound", "/x", None)}
    assert list(tracker.sources("bad")) == []
    json.dumps(tracker.metadata("bad"))


def test_a_sparse_record_costs_little(tracker, tmp_path):
    tracker.add_metadata("bad", lr=0.1)
    with (tmp_path / "runs" / "bad" / "metadata" / "large.json").open("wb") as file:
        file.truncate(4 << 30)

    assert tracker.metadata("bad") == {"lr": 0.1}


@pytest.mark.parametrize(
    "record", ["7", "[" + "[]," * 1000 + "0]", '"' + "x" * 10_000 + '"'], ids=["small", "parts", "long"]
)
def test_many_records_take_bounded_memory(tracker, tmp_path, monkeypatch, caplog, record):
    """A run may write any number of them, and the reader of all runs reads each."""
    monkeypatch.setattr("airflow_provider_launch.tracker.backend.fsspec._LARGEST_RUN", 100_000)
    tracker.add_metadata("bad", a=0.1)
    for number in range(300):
        (tmp_path / "runs" / "bad" / "metadata" / f"b{number}.json").write_text(record)

    assert tracker.metadata("bad")["a"] == 0.1
    assert len(tracker.metadata("bad")) < 250
    assert "further records of run bad in metadata are left out" in caplog.text


def test_a_directory_of_many_names_takes_bounded_memory(tracker, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("airflow_provider_launch.tracker.backend.fsspec._MOST_NAMES", 100)
    tracker.add_source(RUN, "parent")
    folder = tmp_path / "runs" / "bad" / "metadata"
    folder.mkdir(parents=True)
    for number in range(100):
        (folder / f"b{number}.json").write_text("7")

    assert len(tracker.metadata("bad")) == 100
    assert caplog.text == ""
    (folder / "one-more.json").write_text("7")
    assert len(tracker.metadata("bad")) == 100
    assert f"further names in {folder} are left out" in caplog.text
    assert list(tracker.run_ids(parent_run_id="parent")) == [RUN]


def replace_by_link(path, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text('{"source_run_id": "parent", "artifact_name": null}')
    path.symlink_to(secret)


@pytest.mark.parametrize("place", ["record", "folder"])
@pytest.mark.parametrize(
    "replace",
    [
        lambda path, _: os.mkfifo(path),
        lambda path, _: path.mkdir(),
        lambda path, _: path.symlink_to(path.name),
        lambda path, _: os.mknod(path, stat.S_IFSOCK | 0o600),
        replace_by_link,
    ],
    ids=["fifo", "folder", "loop", "socket", "link"],
)
@pytest.mark.timeout(20)
def test_a_file_that_is_no_record_hides_no_other_run(tracker, tmp_path, replace, place):
    """A FIFO had no end: each reader of the directory waited for ever."""
    tracker.add_source(RUN, "parent")
    bad = tmp_path / "runs" / "bad" / "sources"
    bad.parent.mkdir()
    if place == "record":
        bad.mkdir()
    replace(bad / "x.json" if place == "record" else bad, tmp_path)

    assert list(tracker.run_ids(parent_run_id="parent")) == [RUN]
    assert list(tracker.sources("bad")) == []


@pytest.mark.parametrize("call", ["cat_file", "ls"])
@pytest.mark.parametrize(("number", "is_raised"), [(errno.EIO, True), (errno.EACCES, False)])
def test_only_errors_of_the_store_reach_the_reader(monkeypatch, caplog, call, number, is_raised):
    """If the store is not reached, a run without records would look like one that has none."""
    tracker = FsspecTracker(fsspec.filesystem("memory"), "/runs-of-an-outage")
    tracker.add_metadata("r", a=1)

    def fail(path, *_args, **_how):
        raise OSError(number, "no answer", path)

    monkeypatch.setattr(type(tracker._fs), call, staticmethod(fail))
    if is_raised:
        with pytest.raises(OSError, match="no answer"):
            tracker.metadata("r")
    else:
        assert tracker.metadata("r") == {}
        assert "left out: " in caplog.text


def test_a_root_that_cannot_be_listed_is_an_error(tmp_path):
    (tmp_path / "runs").write_text("a file")

    with pytest.raises(NotADirectoryError):
        list(create(f"file://{tmp_path}/runs").run_ids())


@pytest.mark.parametrize(
    ("module", "url", "text"),
    [("fsspec", "/runs", "install the extra 'fsspec'"), ("s3fs", "s3://bucket/runs", "another package for 's3://")],
)
def test_a_missing_package_is_named(monkeypatch, module, url, text):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingDependencyError, match=text):
        create(url)
