"""The places of secrets: what a worker hands over in place of values, and what is found there."""

from __future__ import annotations

import json

import pytest
from airflow.sdk.log import mask_secret

from airflow_provider_launch._task.secrets import hidden_values, places_of
from airflow_provider_launch.specs import AppDef, Role


@pytest.fixture(autouse=True)
def fetched(no_masks):
    """This process has fetched a secret, as a worker does for a template."""
    mask_secret("hush-variable")


def app(env: dict[str, str] | None = None, args: list[str] | None = None) -> AppDef:
    return AppDef("app", [Role("main", "", entrypoint="x", env=env or {}, args=args or [])])


@pytest.mark.parametrize(
    ("given", "copied", "values"),
    [
        (app({"X": "hush-variable"}), {}, {"hush-variable"}),
        (app({"X": "a hush-variable, hush-variable."}), {}, {"hush-variable"}),
        (app({"X": "*** hush-variable"}), {}, {"hush-variable"}),
        (app(args=["--a", "b=hush-variable"]), {}, {"hush-variable"}),
        (app({"DB_PASS": "by-name"}), {}, {"by-name"}),
        (app({"URL": "redis://:in-url@h/0"}), {}, {"in-url"}),
        (app(args=["--token", "argument", "--password=other-one"]), {}, {"argument", "other-one"}),
        (app(), {"main": {"HF_TOKEN": "copied-one", "HF_HOME": "/models"}}, {"copied-one"}),
        (app(), {"main": {"HOME_URL": "x hush-variable"}}, {"x hush-variable"}),
        (app({"X": "plain", "USE_AUTH": "false", "PIN_PASS": "1234"}, ["--epochs=3"]), {}, set()),
    ],
)
def test_places_lead_to_the_values(given, copied, values) -> None:
    places = json.loads(json.dumps(places_of(given, copied)))

    assert not any(value in json.dumps(places) for value in values)
    assert hidden_values(given.roles, copied, places) == values


def test_an_app_without_secrets_has_no_places() -> None:
    """Then a trigger asks nothing more."""
    assert places_of(app({"X": "1", "LAUNCH": "2"}, ["-v"]), {"main": {"PATH": "/bin"}}) == []


def test_places_of_another_app_are_passed() -> None:
    """The app of an earlier try may be from before a change of the DAG."""
    places = places_of(app({"X": "hush-variable"}, ["a", "hush-variable"]), {"main": {"A_TOKEN": "long-enough"}})

    assert hidden_values(app({"Y": "something else"}).roles, {}, places) == set()
