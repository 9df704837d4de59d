"""Random connections, options and apps give a clear error or a request, and never show a secret.

The same 1 000 examples in each run, 10 000 in `make soak`; `LAUNCH_FUZZ=20` runs 20 times as many new ones.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from typing import Any

import pytest
from airflow.sdk import Connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_launch.hooks import launch as hooks
from airflow_provider_launch.operators.launch import LaunchAppOperator
from airflow_provider_launch.runner import api
from airflow_provider_launch.schedulers import get_scheduler_factories
from airflow_provider_launch.specs import AppDef, Role, app_from_dict, app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError, LaunchError
from tests.fuzz.values import MARKER, OPTIONS, QUIET, apps, as_object, cfgs, extras
from tests.support.fake_scheduler import FakeScheduler
from tests.support.repeats import often

FACTOR = int(os.environ.get("LAUNCH_FUZZ", "0"))
CONN_TYPES = [*OPTIONS]
SCHEDULERS = {"launch_local": {}, "launch_docker": {}, "launch": {"scheduler": "fuzzed"}}


def good(conn_type: str) -> AppDef:
    """Return an app that the scheduler of a connection takes."""
    image = "busybox" if conn_type == "launch_docker" else "/"
    return AppDef("app", [Role("w", image, entrypoint="true", env={"DB_PASSWORD": MARKER})])


def examples(count: int) -> settings:
    return settings(
        max_examples=often(max(count // 10, 1), count) * max(FACTOR, 1),
        derandomize=FACTOR == 0,
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )


def create_scheduler(session_name: str, **_: Any) -> FakeScheduler:
    """A plug-in scheduler that accepts any parameters."""
    return FakeScheduler(session_name, backend="fuzzed")


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """A plug-in `fuzzed`, a secret in the launcher's environment, and an empty directory."""
    # Cached, because each runner searches for entry points, which would take most of the time.
    factories = {**get_scheduler_factories(), "fuzzed": create_scheduler}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "get_scheduler_factories", lambda: factories)
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        patch.setenv("LAUNCH_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("HF_TOKEN", MARKER)
        # Each call logs an event; 10 000 of them would hide the output of a failing test.
        logging.disable(logging.CRITICAL)
        yield patch
        logging.disable(logging.NOTSET)


def texts_of(error: BaseException | None) -> list[str]:
    """Return all texts of an error that a log would show."""
    seen = []
    while error is not None:
        seen += [str(error), repr(error)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return seen


def app_texts(app: Any) -> list[str]:
    """The texts of an app; the text of a role that is a mere dict is not ours."""
    if not isinstance(app, AppDef):
        return []
    given_roles = app.roles if isinstance(app.roles, list) else []
    ours = all(isinstance(role, Role) for role in given_roles)
    shown = [str(app), *[repr(app)] * ours]
    try:
        app_to_dict(app)
    except LaunchError as error:
        shown += texts_of(error)
    return shown


class Tried:
    """Return the outcome: the text of the request or of the error."""

    def __init__(self, place: pytest.MonkeyPatch, conn_type: str, extra: str, **fields: str) -> None:
        connection = Connection(conn_id="fuzz", conn_type=conn_type, extra=extra, **fields)
        place.setattr(hooks, "_connection", lambda _: connection)
        self.is_request = False
        self.shown: list[str] = []

    def request(self, make_app: Any, cfg: Any) -> Tried:
        hook = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                hook = hooks.LaunchHook.for_connection("fuzz")
                backend = hook.options.backend
                app = make_app()
                self.shown += app_texts(app)
                info = hook.runner.dryrun(app, backend, hook.merged_cfg(cfg), app_id="app-1")
                request = str(info)
                self.is_request = True
        except LaunchError as error:
            self.shown += texts_of(error)
            request = ""
        finally:
            if hook is not None:
                hook.close()
        # Requests are meant to be read; other texts must not show values.
        assert all(QUIET not in text for text in self.shown)
        self.shown += [request] * self.is_request
        for text in self.shown:
            assert MARKER not in text
            assert text.strip()
            # Texts are printed and written into logs.
            assert text.encode()
        return self


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_connections(conn_type, place) -> None:
    requests = []

    @examples(1000)
    @given(extras(conn_type))
    def try_one(extra):
        requests.append(Tried(place, conn_type, json.dumps(extra)).request(lambda: good(conn_type), {}).is_request)

    try_one()
    assert 0.1 < sum(requests) / len(requests) < 0.9


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_connections_that_are_no_json(conn_type, place) -> None:
    @examples(100)
    @given(
        st.one_of(
            st.text(max_size=20), st.sampled_from(["{", "[]", "1", "null", f'"{MARKER}"', f'{{"secret": "{MARKER}'])
        ),
        st.fixed_dictionaries({}, optional={"password": st.just(MARKER), "host": st.text(max_size=3)}),
    )
    def try_one(extra, fields):
        Tried(place, conn_type, extra, **fields).request(lambda: good(conn_type), {})

    try_one()


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_options(conn_type, place) -> None:
    requests = []

    @examples(1000)
    @given(cfgs(conn_type))
    def try_one(cfg):
        requests.append(
            Tried(place, conn_type, json.dumps(SCHEDULERS[conn_type])).request(lambda: good(conn_type), cfg).is_request
        )

    try_one()
    assert 0.1 < sum(requests) / len(requests) < 0.9


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_apps(conn_type, place) -> None:
    requests = []

    @examples(1000)
    @given(apps, st.booleans())
    def try_one(app, is_object):
        tried = Tried(place, conn_type, json.dumps(SCHEDULERS[conn_type]))
        requests.append(tried.request(lambda: as_object(app) if is_object else app_from_dict(app), {}).is_request)

    try_one()
    assert 0.05 < sum(requests) / len(requests) < 0.9


@pytest.mark.parametrize("conn_type", CONN_TYPES)
def test_all_together_through_the_operator(conn_type, place, capsys) -> None:
    """From the DAG file to the printed request; an app that is accepted and can be JSON survives it."""

    @examples(234)
    @given(extras(conn_type), cfgs(conn_type), apps, st.booleans())
    def try_one(extra, cfg, app, is_object):
        Tried(place, conn_type, json.dumps(extra))
        shown = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                given_app = as_object(app) if is_object else app
                operator = LaunchAppOperator(task_id="t", app=given_app, cfg=cfg, launch_conn_id="fuzz")
                operator.dry_run()
        except LaunchError as error:
            shown = texts_of(error)
            assert all(QUIET not in text for text in shown)
        else:
            # Metadata and tags may be for one scheduler only, and not JSON.
            with contextlib.suppress(InvalidAppError):
                plain = app_to_dict(given_app) if isinstance(given_app, AppDef) else {}
                assert not plain or app_to_dict(app_from_dict(plain)) == plain
        shown += capsys.readouterr()
        assert all(MARKER not in text for text in shown)

    try_one()
