"""Invalid values in an overlay. No cluster is needed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.kubernetes.overlay import checked_overlay
from airflow_provider_launch.specs.errors import InvalidAppError


class V1Volume:
    """Like the models of the kubernetes package, which are not valid JSON."""


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR


@pytest.mark.parametrize(
    ("overlay", "text"),
    [
        (
            {"pod": {"volumes": [V1Volume()]}},
            "'pod' has a value that is not valid JSON .*V1Volume.* write its objects as dicts",
        ),
        ({"pod": {"priority": float("nan")}}, "'pod' has a value that is not valid JSON .* write its objects as dicts"),
        ({"pod": {"volumes": [CIRCULAR]}}, "'pod' has a value that is not valid JSON .* write its objects as dicts"),
        ({"pod": {"activeDeadlineSeconds": 3}}, "pod.activeDeadlineSeconds is set by the scheduler"),
        ({"container": {"env": [{"name": "LAUNCH_REPLICA_ID", "value": "7"}]}}, "LAUNCH_REPLICA_ID .* rename it"),
    ],
)
def test_values_that_would_be_refused_late_or_never_are_refused_at_once(overlay, text):
    with pytest.raises(InvalidAppError, match=text):
        checked_overlay(overlay)
