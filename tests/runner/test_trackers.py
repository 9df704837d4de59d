"""Trackers of the launcher reach every replica."""

from __future__ import annotations

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.runner.api import get_configured_trackers
from airflow_provider_launch.schedulers.api import spec_hash
from airflow_provider_launch.specs import AppDef, Role
from tests.support.fake_scheduler import FakeScheduler


@pytest.fixture(autouse=True)
def no_trackers(monkeypatch, tmp_path):
    for name in ("TORCHX_TRACKERS", "TORCHX_TRACKER_ONE_CONFIG", "TORCHXCONFIG"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config"
    path.write_text("[launch:tracker]\none =\nmod:two\n[tracker:one]\nconfig = of $HOME\n")
    monkeypatch.setenv("LAUNCHCONFIG", str(path))
    return path


def test_names_and_configs_from_the_file(no_trackers):
    assert get_configured_trackers() == {"one": "of $HOME", "mod:two": None}
    assert get_configured_trackers([]) == {}
    no_trackers.write_text("[torchx:tracker]\nolder=\n")
    assert get_configured_trackers() == {"older": None}


def test_variables_win(monkeypatch):
    monkeypatch.setenv("TORCHX_TRACKERS", "one,three")
    monkeypatch.setenv("TORCHX_TRACKER_ONE_CONFIG", "of variable")

    assert get_configured_trackers() == {"one": "of variable", "three": None}
    monkeypatch.setenv("TORCHX_TRACKERS", "")
    assert get_configured_trackers() == {}


def env_of(runner, **env):
    app = AppDef("app", [Role(name, "", entrypoint="true", env=dict(env)) for name in "ab"])
    info = runner.dryrun(app, "fake", app_id="x")
    return [role.env for role in info.request.app.roles], info


def test_every_replica_gets_them():
    factories = {"fake": lambda name, **_: FakeScheduler(name)}
    (first, second), info = env_of(Runner("s", factories))
    (own, _), _ = env_of(Runner("s", factories), TORCHX_TRACKERS="own")
    (none, _), plain = env_of(Runner("s", factories, trackers={}))

    assert first == second
    assert first["TORCHX_TRACKERS"] == "one,mod:two"
    assert first["TORCHX_TRACKER_ONE_CONFIG"] == "of $$HOME"  # a macro's escape: the replica reads `of $HOME`
    assert own["TORCHX_TRACKERS"] == "own"
    assert "TORCHX_TRACKERS" not in none
    # Another worker may have other trackers, but must find the same app.
    assert spec_hash(info.app, {}) == spec_hash(plain.app, {})
