"""Whose logs may be read while reads fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from airflow_provider_launch.follow import host_gate
from airflow_provider_launch.follow.host_gate import AppGate, HostGate


class Clock:
    """A clock that a test sets, in place of the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(host_gate, "time", clock)
    return clock


def reads(clock: Clock, gates: dict[str, list[AppGate]], fails: Callable[[str], bool], seconds: float) -> Counter[str]:
    """Let the replicas of each app ask as a reader does, every second at most; return the reads by app."""
    due = [[clock.now, name, gate] for name, of_app in gates.items() for gate in of_app]
    found: Counter[str] = Counter()
    end = clock.now + seconds
    while clock.now < end:
        for entry in due:
            at, name, gate = entry
            if at > clock.now:
                continue
            if (wait_s := gate.wait_s()) > 0:
                entry[0] = clock.now + wait_s
                continue
            found[name] += 1
            gate.report(is_reached=not fails(name))
            entry[0] = clock.now + 1.0
        clock.now += 0.05
    return found


def apps(host: HostGate, replicas: int, *names: str) -> dict[str, list[AppGate]]:
    return {name: [host.of_app()] * replicas for name in names}


@pytest.fixture
def host(clock) -> Iterator[HostGate]:
    return HostGate()


@pytest.mark.usefixtures("clock")
def test_logs_of_one_app_that_fail_delay_no_other_app(clock, host):
    """A program, a damaged log file or one node that is down can cause any error of its app."""
    gates = apps(host, 100, "bad", "worse") | apps(host, 1, "bystander")
    found = reads(clock, gates, lambda name: name != "bystander", 60)

    assert found["bystander"] >= 55
    assert found["bad"] <= 20


def test_an_app_that_comes_while_another_one_fails_is_read_at_once(clock, host):
    reads(clock, apps(host, 100, "bad"), lambda _name: True, 60)

    assert host.of_app().wait_s() == 0


def test_an_unreachable_scheduler_gets_few_requests_and_all_read_when_it_is_back(clock, host):
    gates = apps(host, 10, *(f"app-{number}" for number in range(20)))
    reads(clock, gates, lambda _name: False, 5)
    down = reads(clock, gates, lambda _name: True, 60)

    # At most each five seconds for each app, and more often only at first.
    assert 20 <= down.total() <= 20 * 60 / 5 + 20 * 6
    back = reads(clock, gates, lambda _name: False, 10)
    assert min(back[name] for name in gates) >= 10


def test_apps_that_start_during_an_outage_probe_in_turns(clock, host):
    """Each read may hang, and the threads that read are shared with other connections."""
    gates = apps(host, 1, *(f"app-{number}" for number in range(200)))

    assert reads(clock, gates, lambda _name: True, 5).total() <= 5 / host_gate._FIRST_PROBES_S + 5 * 5
