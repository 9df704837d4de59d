"""`local_docker`: the name and the options of TorchX."""

from __future__ import annotations

import pytest

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.schedulers.docker.request import OVERLAY_KIND
from airflow_provider_launch.specs import AppDef, Resource, Role, UnsupportedError
from airflow_provider_launch.specs.overlays import set_overlay


def test_variables_of_the_options_give_way_to_those_of_the_role(monkeypatch):
    monkeypatch.setenv("COPIED", "copied")
    monkeypatch.setenv("BOTH", "copied")
    role = Role("w", "image", entrypoint="true", env={"OWN": "role"}, resource=Resource(1, 0, 64))
    env = {"OWN": "option", "GIVEN": "$a ${app_id}", "BOTH": "option"}

    with Runner("s") as runner:
        info = runner.dryrun(AppDef("a", [role]), "local_docker", {"env": env, "copy_env": ["COPIED", "BOTH"]})

    told = str(info)
    assert role.env == {"OWN": "role"}
    for expected in ("OWN=role", "COPIED=copied", "BOTH=option", "$a ${app_id}"):
        assert expected in told


@pytest.mark.parametrize("namespace", ["docker", "local_docker"])
def test_overlays_are_applied_or_refused_under_either_name(namespace):
    def an_app(kind):
        role = Role("w", "image", entrypoint="true", resource=Resource(1, 0, 64))
        set_overlay(role, namespace, kind, {"Hostname": "mine"})
        return AppDef("a", [role])

    with Runner("s") as runner:
        assert '"Hostname": "mine"' in str(runner.dryrun(an_app(OVERLAY_KIND), "local_docker"))
        with pytest.raises(UnsupportedError, match="'unknown' cannot be applied"):
            runner.dryrun(an_app("unknown"), "local_docker")
