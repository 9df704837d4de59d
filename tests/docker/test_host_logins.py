"""The logins of `docker login` on the worker, which credential helpers may keep."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from airflow_provider_launch.schedulers.docker.engine import Engine
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.specs.errors import SchedulerRejectedError

HELPER = """#!/bin/sh
read -r server
test "$server" = registry.example || { echo "credentials not found in native keychain"; exit 1; }
echo '{"ServerURL": "registry.example", "Username": "helped", "Secret": "of-the-helper"}'
"""


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with a credential helper, and a configuration that names it."""
    helper = tmp_path / "docker-credential-kept"
    helper.write_text(HELPER)
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    plain = base64.b64encode(b"hub-user:hub-password").decode()
    config = {
        "credHelpers": {"registry.example": "kept", "broken.example": "missing"},
        "auths": {"https://index.docker.io/v1/": {"auth": plain}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def login(repository: str, **options: Any) -> dict[str, Any]:
    """Return the login that is sent to the engine for a pull."""
    headers = Engine(DockerConnection(host="unix:///nowhere", **options)).images.auth_headers(repository)
    return json.loads(base64.urlsafe_b64decode(headers["X-Registry-Auth"])) if headers else {}


def test_a_credential_helper_is_asked_for_its_registry_only(host) -> None:
    found = login("registry.example/train")

    assert (found["Username"], found["Password"]) == ("helped", "of-the-helper")
    assert login("other.example/train") == {}


def test_a_login_in_the_file_is_used(host) -> None:
    found = login("busybox")

    assert (found["username"], found["password"]) == ("hub-user", "hub-password")


def test_the_login_of_the_connection_wins_for_its_registry(host) -> None:
    own = {"registry": "registry.example", "registry_username": "me", "registry_password": "pw"}

    assert login("registry.example/train", **own)["username"] == "me"
    assert login("busybox", **own)["username"] == "hub-user"


def test_a_helper_that_fails_is_named(host) -> None:
    with pytest.raises(SchedulerRejectedError, match=r"'broken.example' in ~/.docker/config.json .*credential helper"):
        login("broken.example/train")


def test_without_a_configuration_nothing_is_sent(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    assert login("registry.example/train") == {}
