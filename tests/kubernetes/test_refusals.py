"""Refusals of the server that end by themselves."""

from __future__ import annotations

from decimal import Decimal

import pytest

from airflow_provider_launch.schedulers.kubernetes.claims import is_passing, quantity

QUOTA = 'pods "x" is forbidden: exceeded quota: q, requested: {}, used: {}, limited: {}'


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        (QUOTA.format("pods=1", "pods=5", "pods=5"), True),
        (QUOTA.format("limits.cpu=500m,pods=1", "limits.cpu=1,pods=5", "limits.cpu=1,pods=5"), True),
        (QUOTA.format("limits.memory=2Gi", "limits.memory=0", "limits.memory=1Gi"), False),
        (QUOTA.format("count/jobs.batch=1", "count/jobs.batch=5", "count/jobs.batch=5"), False),
        ("failed quota: q: must specify requests.cpu", False),
        ("maximum memory usage per Container is 64Mi, but limit is 128Mi", False),
    ],
)
def test_a_quota_that_is_used_up_passes_and_nothing_else(text, passing):
    assert is_passing(text) is passing


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", "1"), ("500m", "0.5"), ("1Gi", str(2**30)), ("1.5k", "1500"), ("1e3", "1000"), ("2M", "2000000")],
)
def test_quantities(text, number):
    assert quantity(text) == Decimal(number)
