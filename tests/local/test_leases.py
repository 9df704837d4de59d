"""Ports of this host."""

from __future__ import annotations

import socket

from airflow_provider_launch.schedulers.local import leases


def test_a_port_that_somebody_uses_is_not_leased(tmp_path, monkeypatch):
    """Another program of the host, which knows nothing of leases."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(leases, "FIRST_PORT", port - 1)
        monkeypatch.setattr(leases, "LAST_PORT", port)
        monkeypatch.setattr(leases.random.SystemRandom, "sample", lambda _self, ports, _count: [*reversed(ports)])
        found = leases.Leases(str(tmp_path), str(tmp_path))._choose_port()

    assert found == port - 1
