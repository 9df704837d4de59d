"""Ports of this host."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from airflow_provider_launch.schedulers.local import leases


def test_a_used_port_is_not_leased(tmp_path, monkeypatch):
    """Another program of the host, which does not use leases."""
    with socket.socket() as taken:
        # Both free: the kernel often gives out a port next to one in use.
        port = next(port for port in range(21_001, 32_000) if leases._is_free(port) and leases._is_free(port - 1))
        taken.bind(("", port))
        monkeypatch.setattr(leases, "FIRST_PORT", port - 1)
        monkeypatch.setattr(leases, "LAST_PORT", port)
        monkeypatch.setattr(random.SystemRandom, "sample", lambda _self, ports, _count: [*reversed(ports)])
        found = leases.Leases(str(tmp_path), str(tmp_path))._choose_port()
        assert leases._is_free(port) is False

    assert found == port - 1


def test_a_port_is_leased_to_one_app(tmp_path, monkeypatch):
    """Two ports are used by two apps, and the third app is refused."""
    monkeypatch.setattr(leases, "_is_free", lambda _port: True)
    monkeypatch.setattr(leases, "FIRST_PORT", 20000)
    monkeypatch.setattr(leases, "LAST_PORT", 20001)
    apps = [leases.Leases(str(tmp_path), str(tmp_path / name)) for name in "abc"]
    found = {apps[0]._choose_port(), apps[1]._choose_port()}

    assert found == {20000, 20001}
    apps[2].ports([{"name": "r", "ports": {"p": 0}}])
    assert apps[2].conflict == "no port from 20000 to 20001 is free on this host"


def test_a_fixed_port_is_leased_to_the_app_that_asked_first(tmp_path):
    """Two trainings with one rendezvous port become one, and the second dies when the first ends."""
    roles = [{"name": "r", "ports": {"p": 29500, "q": 29500}}]
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    first = leases.Leases(str(tmp_path), str(tmp_path / "one"), "one")
    second = leases.Leases(str(tmp_path), str(tmp_path / "other"), "other")

    assert leases.port_owner(str(tmp_path), 29500) == ""
    assert first.ports(roles) == {"LAUNCH_PORT_R_P": 29500, "LAUNCH_PORT_R_Q": 29500}
    assert leases.port_owner(str(tmp_path), 29500) == "one"
    second.ports(roles)
    assert (first.conflict, second.conflict) == ("", "port 29500 is leased to app 'one'")


def test_the_next_supervisor_of_an_app_has_its_fixed_port(tmp_path):
    """Its shims may still hold the lease of the former supervisor."""
    roles = [{"name": "r", "ports": {"p": 29500}}]
    former = leases.Leases(str(tmp_path), str(tmp_path), "one")
    former.ports(roles)
    following = leases.Leases(str(tmp_path), str(tmp_path), "one")
    following.ports(roles)

    assert following.conflict == ""


@pytest.mark.parametrize("act", [lambda path: path.mkdir(), lambda path: path.symlink_to("x")], ids=["folder", "link"])
def test_what_a_program_put_in_place_of_a_lease_does_not_stay(tmp_path: Path, act) -> None:
    """Each later app with this port or GPU would fail, long after the end of that program."""
    for lease in ("ports/20000.lock", "gpus/GPU-a.lock"):
        path = tmp_path / lease
        path.parent.mkdir(mode=0o700)
        act(path)

    assert leases.port_owner(str(tmp_path), 20000) == ""
    assert leases._is_locked(str(tmp_path / "ports/20000.lock")) is False
    assert leases.free_gpus(str(tmp_path), ["GPU-a"]) == ["GPU-a"]
    taken = leases.Leases(str(tmp_path), str(tmp_path))
    assert taken._reserve(str(tmp_path / "ports/20000.lock"))
    assert taken._reserve(str(tmp_path / "gpus/GPU-a.lock"), wait=True)
    assert leases.free_gpus(str(tmp_path), ["GPU-a"]) == []
