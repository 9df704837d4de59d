"""What a platform's dashboards and alerts are made of."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.observability.stats import Stats

from airflow_provider_launch._task import metrics
from tests.airflow.support import FakeExecutionApi, launch, run_task, run_to_end, sh


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any, dict[str, str]]]:
    """What Airflow's `Stats` is given: method, name, value, tags."""
    found: list[tuple[str, str, Any, dict[str, str]]] = []

    def keep(method: str) -> Any:
        plain = getattr(Stats, method)

        def kept(stat: str, value: Any, *, tags: Any = None) -> None:
            found.append((method, stat, value, tags or {}))
            # Airflow checks names and tags too.
            plain(stat, value, tags=tags)

        return staticmethod(kept)

    for method in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, method, keep(method))
    return found


@pytest.mark.parametrize(("code", "state"), [(0, "SUCCEEDED"), (3, "FAILED")])
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_task_counts_its_app_and_its_lines(sent: Any, code: int, state: str, deferrable: bool) -> None:
    run_to_end(launch(sh(f"echo one; echo two; exit {code}"), deferrable=deferrable), FakeExecutionApi())

    assert ("incr", "launch.apps_launched", 1, {"backend": "local"}) in sent
    assert [entry for entry in sent if entry[1] == "launch.apps_ended"] == [
        ("incr", "launch.apps_ended", 1, {"backend": "local", "state": state})
    ]
    assert sum(entry[2] for entry in sent if entry[1] == "launch.log_lines") == 2
    (submit,) = [entry for entry in sent if entry[1] == "launch.submit"]
    assert 0 < submit[2] < 60_000


def test_metrics_that_fail_do_not_change_how_a_task_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fail(stat: str, *_: Any, **__: Any) -> None:
        asked.append(stat)
        raise OSError("no statsd")

    for method in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, method, staticmethod(fail))
    metrics.gauge("log_bytes_held", 1)

    assert run_task(launch(sh("exit 0")), FakeExecutionApi()).state == "success"
    assert "launch.apps_launched" in asked
