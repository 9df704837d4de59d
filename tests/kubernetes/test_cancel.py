"""Cancels of pods while other processes observe their app."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs import AppState
from tests.programs.signals import COUNTS, UP, terms
from tests.support.apps import until

pytestmark = pytest.mark.engine("kubernetes")


def test_cancel_sends_term_once(kubernetes_apps):
    """A second one would interrupt a program that writes its checkpoint after the first. The kubelet signals only the
    first process of a container."""
    apps = kubernetes_apps
    app_id = apps.start(apps.sh(COUNTS), grace_s=60)
    until(lambda: {*apps.lines(app_id)} >= UP, apps.timeout_s)
    apps.another().cancel(app_id)
    until(lambda: terms(apps.lines(app_id), "parent"))
    apps.scheduler.cancel(app_id)

    assert apps.end(app_id, timeout_s=120).state is AppState.CANCELLED
    lines = apps.lines(app_id)
    assert terms(lines, "parent") == ["parent TERM 1\n"]
    assert len(terms(lines, "child")) <= 1
