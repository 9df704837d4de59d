"""Ports of this host."""

from __future__ import annotations

import socket

import pytest

from airflow_provider_launch.schedulers.local import leases


def test_a_used_port_is_not_leased(tmp_path, monkeypatch):
    """Another program of the host, which does not use leases."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(leases, "FIRST_PORT", port - 1)
        monkeypatch.setattr(leases, "LAST_PORT", port)
        monkeypatch.setattr(leases.random.SystemRandom, "sample", lambda _self, ports, _count: [*reversed(ports)])
        found = leases.Leases(str(tmp_path), str(tmp_path))._choose_port()

    assert found == port - 1


def test_a_port_is_leased_to_one_app(tmp_path, monkeypatch):
    """Two ports are used by two apps, and the third app is refused."""
    monkeypatch.setattr(leases, "_is_free", lambda _port: True)
    monkeypatch.setattr(leases, "FIRST_PORT", 20000)
    monkeypatch.setattr(leases, "LAST_PORT", 20001)
    apps = [leases.Leases(str(tmp_path), str(tmp_path / name)) for name in "abc"]
    found = {apps[0]._choose_port(), apps[1]._choose_port()}

    assert found == {20000, 20001}
    with pytest.raises(RuntimeError, match="no free port between 20000 and 20001"):
        apps[2]._choose_port()
