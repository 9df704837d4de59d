"""Cancels of jobs: each process gets TERM once, although the script of the job repeats its signal."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs import AppState
from tests.programs.signals import COUNTS, UP, terms
from tests.slurm.conftest import Place
from tests.support.apps import until

pytestmark = pytest.mark.engine("slurm")


def assert_one_term(lines: list[str]) -> None:
    assert terms(lines, "parent") == ["parent TERM 1\n"]
    assert terms(lines, "child") == ["child TERM 1\n"]


def test_cancel_sends_term_once_to_each_process(place: Place) -> None:
    """A second one would interrupt a program that writes its checkpoint after the first.

    Slurm signals all replicas when one has failed; one that ends by TERM has not.
    """
    app_id = place.start(place.sh(COUNTS), place.sh("exec sleep 300", "obedient"), grace_s=60)
    until(lambda: {*place.lines(app_id)} >= UP, place.timeout_s)
    place.another().cancel(app_id)
    until(lambda: terms(place.lines(app_id), "parent"), place.timeout_s)
    place.scheduler.cancel(app_id)

    assert place.end(app_id).state is AppState.CANCELLED
    assert_one_term(place.lines(app_id))


def test_the_end_of_a_failed_app_sends_term_once_to_each_process(place: Place) -> None:
    app_id = place.start(place.sh(COUNTS), place.sh("sleep 3; exit 5", "failing"), grace_s=60)

    assert place.end(app_id).state is AppState.FAILED
    assert_one_term(place.lines(app_id))


def test_a_job_that_another_user_cancels_sends_term_once_to_each_process(place: Place) -> None:
    app_id = place.start(place.sh(COUNTS), grace_s=60)
    until(lambda: {*place.lines(app_id)} >= UP, place.timeout_s)
    place.cluster.run("scancel", f"--name={app_id}")

    assert place.end(app_id).state is AppState.CANCELLED
    assert_one_term(place.lines(app_id))


def test_services_get_term_once(place: Place) -> None:
    """The script of the job stops them when all other replicas have succeeded."""
    service = place.sh(COUNTS, "ps", service=True)
    app_id = place.start(place.sh("sleep 3"), service, grace_s=60)

    assert place.end(app_id).state is AppState.SUCCEEDED
    assert_one_term(place.lines(app_id, "ps"))
