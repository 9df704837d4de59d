"""The session id, shared by everything that a process launches."""

from __future__ import annotations

import uuid

import pytest

from airflow_provider_launch import settings
from airflow_provider_launch.util import session


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(session, "CURRENT_SESSION_ID", None)
    monkeypatch.delenv(session.TORCHX_INTERNAL_SESSION_ID, raising=False)


def test_reading_makes_no_id():
    assert session.get_torchx_session_id() is None


def test_an_id_is_made_once():
    made = session.get_session_id_or_create_new()

    assert uuid.UUID(made).version == 4
    assert session.get_session_id_or_create_new() == session.get_torchx_session_id() == made


def test_an_inherited_id_is_kept_for_the_life_of_the_process(monkeypatch):
    monkeypatch.setenv(session.TORCHX_INTERNAL_SESSION_ID, "parent")
    session.get_session_id_or_create_new()
    monkeypatch.setenv(session.TORCHX_INTERNAL_SESSION_ID, "other")

    assert session.get_session_id_or_create_new() == "parent"


def test_the_variable_has_one_name():
    assert session.TORCHX_INTERNAL_SESSION_ID is settings.ENV_TORCHX_INTERNAL_SESSION_ID
