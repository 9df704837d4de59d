"""`local_cwd`: an app written for TorchX runs in the current directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers import get_scheduler_factories
from airflow_provider_launch.specs import AppDef, AppState, BindMount, InvalidAppError, Resource, RetryPolicy, Role

pytestmark = pytest.mark.engine("local")


@pytest.fixture
def runner(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    params = {name: {"root": str(tmp_path / "root")} for name in ("local", "local_cwd")}
    with Runner("s", scheduler_params=params) as runner:
        yield runner


def an_app(script: str, **kwargs) -> AppDef:
    return AppDef("app", [Role("w", "repo/image:1", entrypoint="sh", args=["-c", script], **kwargs)])


def ended(runner, handle, state=AppState.SUCCEEDED):
    status = runner.wait(handle, 0.1, timeout=60)
    assert status.state is state, status
    return status


def test_the_older_names_are_listed():
    assert {"local_cwd", "local_docker"} <= set(get_scheduler_factories())
    assert next(iter(get_scheduler_factories())) == "local"


def test_what_the_app_shows_of_its_image_is_ignored_with_a_note(runner):
    app = an_app("pwd; echo ${img_root}", resource=Resource(4, 8, 100), mounts=[BindMount("/a", "/b")])

    info = runner.dryrun(app, "local_cwd")
    handle = runner.schedule(info)

    ended(runner, handle)
    assert handle.startswith("local_cwd://s/")
    assert [*runner.log_lines(handle, "w")] == [f"{Path.cwd()}\n"] * 2
    assert "role w: image 'repo/image:1', mounts, resource.gpu=8 ignored by local_cwd" in str(info)
    assert runner.describe(handle).roles[0].image == "repo/image:1"


def test_logs_are_where_the_user_wants_them(runner, tmp_path):
    app = an_app("echo out $LAUNCH_ATTEMPT; echo err >&2; exit $((1 - LAUNCH_ATTEMPT))", num_replicas=2)
    app.roles[0].max_retries = 1
    app.roles[0].retry_policy = RetryPolicy.APPLICATION

    handle = runner.run(app, "local_cwd", {"log_dir": str(tmp_path / "logs")})
    ended(runner, handle)

    logs = tmp_path / "logs" / handle.rpartition("/")[2] / "w"
    assert [(logs / str(k) / "stdout.log").read_text() for k in (0, 1)] == ["out 1\n"] * 2
    assert (logs / "0" / "stderr.log").read_text() == "err\n"
    runner.delete(handle)
    assert (logs / "0" / "stdout.log").read_text() == "out 1\n"


def test_a_log_dir_that_cannot_be_made_does_not_stop_the_app(runner, tmp_path):
    (tmp_path / "file").write_text("")

    handle = runner.run(an_app("echo out"), "local_cwd", {"log_dir": str(tmp_path / "file")})

    ended(runner, handle)
    assert any("logs are not in" in line for line in runner.log_lines(handle, "w"))


def test_the_environment_is_inherited_on_demand(runner, monkeypatch):
    monkeypatch.setenv("SOME_SETTING", "value")
    app = an_app("echo [$SOME_SETTING]")

    lines = []
    for cfg in ({}, {"copy_env": ["*"]}):
        handle = runner.run(app, "local_cwd", cfg)
        ended(runner, handle)
        lines += runner.log_lines(handle, "w")

    assert lines == ["[]\n", "[value]\n"]


def test_gpus_are_honoured_when_asked_for(runner):
    app = an_app("true", resource=Resource(1, 1, 100))

    with pytest.raises(InvalidAppError, match="GPU"):
        runner.dryrun(app, "local_cwd", {"auto_set_cuda_visible_devices": True})
    with pytest.raises(InvalidAppError, match="GPU"):
        runner.dryrun(AppDef("app", [Role("w", "", entrypoint="true", resource=Resource(1, 1, 1))]), "local")


def test_torchrun_keeps_its_logs_with_the_app_and_the_app_has_a_place(runner, tmp_path):
    handle = runner.run(an_app('echo "$PET_LOG_DIR"'), "local_cwd")

    status = ended(runner, handle)

    root = tmp_path / "root" / "apps" / handle.rpartition("/")[2]
    assert status.ui_url == f"file://{root}/run"
    assert [*runner.log_lines(handle, "w")] == [f"{root}/run/0/0-w/0/0/torch\n"]


def test_one_cfg_may_serve_several_schedulers(tmp_path):
    cfg = {"log_dir": str(tmp_path / "logs"), "queue": "gpu", "grace_s": 3.0}
    app = AppDef("app", [Role("w", "", entrypoint="true")])
    params = {"root": str(tmp_path / "root")}

    with Runner("s", scheduler_params=params) as strict, pytest.raises(InvalidAppError, match="unknown option"):
        strict.dryrun(app, "local", cfg)
    with Runner("s", scheduler_params=params, strict=False) as runner:
        assert "grace 3 s" in str(runner.dryrun(app, "local", cfg))
        ended(runner, runner.run(app, "local", cfg))
        with pytest.raises(InvalidAppError, match="grace_s"):
            runner.dryrun(app, "local", {"grace_s": "soon"})
