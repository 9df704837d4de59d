"""`local_docker`: the name and the options that TorchX users know."""

from __future__ import annotations

from airflow_provider_launch.runner import Runner
from airflow_provider_launch.specs import AppDef, Resource, Role


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
