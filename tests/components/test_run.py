"""Components by a runner, on real local processes."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_launch.apps import booth, copy
from airflow_provider_launch.runner import Runner
from airflow_provider_launch.runtime.tracking import FsspecResultTracker
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.finder import ComponentNotFoundException

pytestmark = pytest.mark.engine("local")


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = {"local": {"root": str(tmp_path / "root")}}
    with Runner("test", component_defaults={"utils.echo": {"msg": "by default"}}, scheduler_params=params) as runner:
        yield runner


def lines(runner, handle, role):
    status = runner.wait(handle, 0.1, timeout=60)
    assert status is not None
    assert status.state is AppState.SUCCEEDED
    return [*runner.log_lines(handle, role)]


@pytest.mark.parametrize(
    ("name", "arguments", "role", "expected"),
    [
        ("utils.echo", {}, "echo", ["by default\n"]),
        ("utils.echo", ["--msg", "given"], "echo", ["given\n"]),
        ("utils.sh", ["echo", "a  b"], "sh", ["a  b\n"]),
        ("utils.sh", {"args": ["echo", "c  d"], "env": {"X": "1"}}, "sh", ["c  d\n"]),
        ("utils.sh", ["--entrypoint", "printf", "%s\\n", "plain"], "sh", ["plain\n"]),
        ("utils.python", ["-c", "import sys; print(sys.argv[1:])", "x", "--y"], "python", ["['x', '--y']\n"]),
    ],
)
def test_components_run(runner, name, arguments, role, expected):
    handle = runner.run_component(name, arguments, "local")

    assert lines(runner, handle, role) == expected


def test_touch_and_copy_work_on_files(runner, tmp_path):
    lines(runner, runner.run_component("utils.touch", {"file": str(tmp_path / "made")}, "local"), "touch")
    assert (tmp_path / "made").read_bytes() == b""
    (tmp_path / "made").write_bytes(b"x" * 100_000)
    arguments = {"src": str(tmp_path / "made"), "dst": f"file://{tmp_path}/deep/down/copy"}

    lines(runner, runner.run_component("utils.copy", arguments, "local"), "copy")

    assert (tmp_path / "deep/down/copy").read_bytes() == b"x" * 100_000


def test_booth_keeps_the_value_of_each_trial(runner, tmp_path):
    base = tmp_path / "results"
    expected = {"0": (1.0, 3.0, 0.0), "1": (-1.0, 0.5, 91.25)}
    for trial, (x1, x2, _) in expected.items():
        arguments = ["--x1", str(x1), f"--x2={x2}", "--trial_idx", trial, "--tracker_base", str(base)]
        lines(runner, runner.run_component("utils.booth", arguments, "local"), "booth")

    found = {trial: FsspecResultTracker(str(base))[trial]["booth_eval"] for trial in expected}
    assert found == {trial: value for trial, (_, _, value) in expected.items()}


def test_copy_knows_stores(tmp_path):
    import fsspec

    (tmp_path / "a").write_bytes(b"content")
    copy.main(["--src", str(tmp_path / "a"), "--dst", "memory://dir/b"])

    assert fsspec.filesystem("memory").cat("/dir/b") == b"content"


@pytest.mark.parametrize(
    ("app", "words"),
    [(booth, ["--x1=1", "--x2=3", "--tracker_base=memory://results"]), (copy, ["--src=a", "--dst=memory://b"])],
    ids=["booth", "copy"],
)
def test_without_fsspec_an_app_names_the_package(app, words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fsspec", None)

    with pytest.raises(SystemExit) as ended:
        app.main(words)

    assert ended.value.code == 2
    assert "fsspec is not installed: pip install fsspec" in capsys.readouterr().err


def test_a_dry_run_starts_nothing_and_an_error_ends_no_process(runner):
    info = runner.dryrun_component("utils.echo", {"num_replicas": 3}, "local")

    assert info.app.roles[0].num_replicas == 3
    assert runner.list("local") == []
    with pytest.raises(InvalidAppError, match=r"required: --file(.|\n)*usage: touch"):
        runner.run_component("utils.touch", [], "local")
    with pytest.raises(ComponentNotFoundException, match=r"'utils\.echo'"):
        runner.run_component("utils.ehco", [], "local")
    with pytest.raises(InvalidAppError, match="`-j 0x1`"):
        runner.run_component("dist.ddp", {"script": "a.py", "j": "0x1"}, "local")


def test_a_second_run_with_one_key_adopts_the_first(runner):
    first = runner.run_component("utils.echo", {}, "local", idempotency_key="k")

    assert runner.run_component("utils.echo", {}, "local", idempotency_key="k") == first
