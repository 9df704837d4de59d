"""Overrides of Hydra that a run chooses: any text is data of the app, or refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_launch.components._hydra import app_from_config
from airflow_provider_launch.specs import AppDef, InvalidAppError
from tests.fuzz.test_untrusted import fuzzed

CONFIG = """
defaults: [{group: a}, _self_]
part: x
empty: ""
app:
  _target_: airflow_provider_launch.specs.AppDef
  name: a${part}
  metadata:
    calls: {_target_: tests.fuzz.test_overrides.called, path: fixed}
    parses: ${oc.decode:${part}}
  roles:
    - {_target_: airflow_provider_launch.specs.Role, name: main, image: i, args: ["${part}", "$${part}"]}
"""
SECRET = "hush-of-the-worker"
WHOLE = st.sampled_from([
    "${oc.env:WORKER_SECRET}", "{oc.env:WORKER_SECRET}", "${part}", "${launch.app_id:}", "x",
    "$\\{oc.env:WORKER_SECRET\\}", "{_target_: builtins.open, _args_: [OPENED, w]}", "[file://ELSEWHERE]",
    "../group/evil", "link", "b", "{_target_: tests.fuzz.test_overrides.called, path: x}", "{calls: {path: x}}",
    "{metadata: {calls: {path: x}}}",
    '${oc.create:${oc.decode:"{_tar${empty}get_: builtins.open, _args_: [OPENED, w]}"}}',
])  # fmt: skip
PARTS = st.sampled_from([
    "_target_", "_tar", "get_", "_args_", "builtins.open", "OPENED", "${", "$", "{", "}", "oc.env:", "WORKER_SECRET",
    "oc.decode:", "oc.create:", "part", "app", "name", "metadata", "hydra", "hydra.searchpath", "launch.app_id:",
    "hydra/launcher", "group", "evil", "[", "]", "'", '"', "\\", "..", "/", ".", "@", "=", ":", ",", "+", "~", "(", ")",
    " ", "_global_", "file://ELSEWHERE", "null", "\n", "\0", "\ud800", "²",
])  # fmt: skip
KEYS = st.sampled_from([
    "part=", "+group=", "app.name=", "+app.metadata.x=", "app.roles.0.args.0=", "hydra.searchpath=", "hydra/launcher=",
    "group=", "unlisted=", "app.metadata.calls.path=", "+app.metadata.calls.x=", "app.metadata=", "app=", "n.a.x=",
])  # fmt: skip
WRAPPED = st.sampled_from(["{}", "'{}'", '"{}"', "[{}]", "{{a: {}}}", "\\{}"])
VALUES = WHOLE | st.lists(WHOLE | PARTS, max_size=8).map("".join)
CALLS: list[str] = []
OVERRIDES = st.builds(lambda key, form, value: key + form.format(value), KEYS | st.just(""), WRAPPED, VALUES)


def called(path: str, **more: object) -> str:
    """Be a function of the config."""
    CALLS.append(f"{path}{more or ''}")
    return path


@pytest.fixture(scope="module")
def conf(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("overrides")
    (base / "conf").mkdir()
    (base / "conf" / "c.yaml").write_text(CONFIG)
    for name in ("group", "unlisted"):
        (base / "conf" / name).mkdir()
    (base / "conf" / "group" / "a.yaml").write_text("x: 1\n")
    (base / "conf" / "group" / "b.yaml").write_text("x: 2\n")
    (base / "group").mkdir()
    (base / "group" / "evil.yaml").write_text(
        f"# @package _global_\napp: {{name: {{_target_: builtins.open, _args_: [{base / 'opened'}, w]}}}}\n"
    )
    for name in ("group", "unlisted"):
        (base / "conf" / name / "link.yaml").symlink_to(base / "group" / "evil.yaml")
    (base / "conf" / "unlisted" / "evil.yaml").write_text((base / "group" / "evil.yaml").read_text())
    return base


@given(st.lists(OVERRIDES, max_size=3))
@fuzzed
def test_overrides_of_hydra(conf, overrides):
    texts = [each.replace("OPENED", str(conf / "opened")).replace("ELSEWHERE", str(conf)) for each in overrides]
    found = None
    CALLS.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKER_SECRET", SECRET)
        # Other errors fail the test.
        with contextlib.suppress(InvalidAppError):
            found = app_from_config("c", str(conf / "conf"), texts)
    assert found is None or (isinstance(found, AppDef) and SECRET not in repr(found))
    assert not (conf / "opened").exists()
    assert {*CALLS} <= {"fixed"}
