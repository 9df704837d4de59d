import copy
import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_launch.specs import (
    AppDef,
    BindMount,
    DeviceMount,
    InvalidAppError,
    Resource,
    RetryPolicy,
    Role,
    VolumeMount,
    Workspace,
    app_from_dict,
    app_to_dict,
)

FULL = AppDef(
    "train",
    [
        Role(
            "trainer",
            "repo/train:1",
            min_replicas=1,
            entrypoint="python",
            args=["-m", "{{ ds }}", "${replica_id}"],
            env={"A": "b\n'\"ä"},
            num_replicas=4,
            max_retries=2,
            retry_policy=RetryPolicy.REPLICA,
            resource=Resource(8, 1, 32_000, capabilities={"a": [1.5]}, devices={"d": 1}, tags={"t": None}),
            port_map={"rdzv": 29500},
            metadata={"kubernetes": {"x": [1, {"y": None}]}},
            mounts=[BindMount("/a", "/b", read_only=True), VolumeMount("v", "/c"), DeviceMount("/d", "/e", "r")],
            workspace=Workspace({"~/a": "lib"}),
        ),
        Role("ps", ""),
    ],
    metadata={"torchx/context": True},
)


@pytest.mark.parametrize("app", [FULL, AppDef("a"), AppDef("a", [Role("r", "")])])
def test_an_app_survives_json(app):
    plain = app_to_dict(app)

    assert json.loads(json.dumps(plain)) == plain
    assert app_from_dict(json.loads(json.dumps(plain))) == app


def test_the_dict_shows_enums_by_value_and_mounts_by_type():
    role = app_to_dict(FULL)["roles"][0]

    assert type(role["retry_policy"]) is str
    assert role["retry_policy"] == "REPLICA"
    assert role["mounts"] == [
        {"type": "bind", "src_path": "/a", "dst_path": "/b", "read_only": True},
        {"type": "volume", "src": "v", "dst_path": "/c", "read_only": False},
        {"type": "device", "src_path": "/d", "dst_path": "/e", "permissions": "r"},
    ]
    assert role["workspace"] == {"projects": {"~/a": "lib"}}


def test_dict_and_app_share_nothing():
    before = copy.deepcopy(FULL)
    plain = app_to_dict(FULL)
    plain["roles"][0]["args"].append("x")
    plain["roles"][0]["metadata"]["kubernetes"]["x"][1]["y"] = 1
    assert before == FULL

    plain = app_to_dict(FULL)
    app_from_dict(plain).roles[0].metadata["kubernetes"]["x"][1]["y"] = 1
    assert plain == app_to_dict(FULL)


def test_missing_fields_get_their_default():
    assert app_from_dict({"name": "a", "roles": [{"name": "r", "image": "i"}]}) == AppDef("a", [Role("r", "i")])


def test_a_mount_without_type_is_identified_by_its_keys():
    mounts = [
        {"src_path": "a", "dst_path": "b", "read_only": False},
        {"src": "a", "dst_path": "b"},
        {"src_path": "a", "dst_path": "b", "permissions": "rw"},
    ]

    app = app_from_dict({"name": "a", "roles": [{"name": "r", "image": "", "mounts": mounts}]})

    assert app.roles[0].mounts == [BindMount("a", "b"), VolumeMount("a", "b"), DeviceMount("a", "b", "rw")]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"arg": ["x"]}, "roles.0.arg: Role has no such field; did you mean 'args'?"),
        ({"base_image": "x", "entrypoint": "y"}, "roles.0.base_image: Role has no such field; did you mean"),
        ({"zzz": 1}, "roles.0.zzz: Role has no such field; it has name, image, min_replicas"),
        ({"args": [5]}, "roles.0.args.0: must be text, but is of type int; use str()"),
        ({"args": "x"}, "roles.0.args: must be a list, but is of type str"),
        ({"num_replicas": "2"}, "roles.0.num_replicas: must be a whole number, but '2' is of type str"),
        (
            {"retry_policy": "NEVER"},
            "roles.0.retry_policy: 'NEVER' is not a retry policy; use one of REPLICA, APPLICATION",
        ),
        ({"retry_policy": ["ROLE"]}, "roles.0.retry_policy: ['ROLE'] is not a retry policy"),
        ({"resource": {"cpu": 1, "gpu": 0}}, "roles.0.resource.memMB: is missing; Resource needs it"),
        (
            {"resource": {"cpu": 1, "gpu": 0, "memMb": 1}},
            "roles.0.resource.memMb: Resource has no such field; did you mean 'memMB'",
        ),
        ({"resource": "gpu.small"}, "roles.0.resource: must be a dict with the fields of Resource, but is of type str"),
        (
            {"mounts": [{"type": "bin", "src_path": "a"}]},
            "roles.0.mounts.0.type: 'bin' is not a mount type; use one of bind",
        ),
        (
            {"mounts": [{"src_path": "a", "dst_path": "b"}]},
            "roles.0.mounts.0.type: is missing, and no key identifies it",
        ),
        ({"mounts": [{"type": "bind", "src_path": "a"}]}, "roles.0.mounts.0.dst_path: is missing; BindMount needs it"),
        (
            {"mounts": [{"type": "volume", "src_path": "a", "dst_path": "b"}]},
            "roles.0.mounts.0.src_path: VolumeMount has no",
        ),
        ({"mounts": {"a": 1}}, "roles.0.mounts: must be a list, but is of type dict"),
        ({"workspace": {"projects": {"a": 5}}}, "roles.0.workspace.projects.a: must be text"),
        (
            {"workspace": {"project": {}}},
            "roles.0.workspace.project: Workspace has no such field; did you mean 'projects'",
        ),
        ({"metadata": {"a": [{"b": {1, 2}}]}}, "roles.0.metadata.a.0.b: {1, 2} is of type set, which JSON cannot hold"),
    ],
)
def test_a_wrong_dict_is_refused_with_its_path(change, line):
    data = {"name": "a", "roles": [{"name": "r", "image": "", **change}]}

    with pytest.raises(InvalidAppError, match=re.escape(f"\n  {line}")):
        app_from_dict(data)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (None, "app: must be a dict with the fields of AppDef, but is of type NoneType"),
        ([], "app: must be a dict with the fields of AppDef, but is of type list"),
        ({}, "name: is missing; AppDef needs it"),
        ({"name": "a", "role": []}, "role: AppDef has no such field; did you mean 'roles'?"),
        ({"name": "a", "roles": None}, "roles: must be a list, but None is of type NoneType"),
        ({"name": "a", "roles": [None]}, "roles.0: must be a dict with the fields of Role, but is of type NoneType"),
        ({"name": "a", 5: 6}, "5: AppDef has no such field"),
    ],
)
def test_data_of_another_type_is_refused(data, line):
    with pytest.raises(InvalidAppError, match=re.escape(f"\n  {line}")):
        app_from_dict(data)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            {"a": Path("/x")},
            "metadata.a: PosixPath('/x') is of type PosixPath, which JSON cannot hold; use text or numbers",
        ),
        ({"a": [float("nan")]}, "metadata.a.0: nan is of type float, which JSON cannot hold"),
        ({"a": {5: 6}}, "metadata.a.5: the key 5 must be text, as in JSON"),
    ],
)
def test_values_that_json_cannot_hold_are_refused_and_not_dropped(value, line):
    with pytest.raises(InvalidAppError, match=re.escape(f"\n  {line}")):
        app_to_dict(AppDef("a", metadata=value))


@dataclass
class _Custom(Role):
    extra: int = 5


def test_fields_of_a_subclass_are_reported_and_not_read_back():
    plain = app_to_dict(AppDef("a", [_Custom("r", "")]))

    assert plain["roles"][0]["extra"] == 5
    with pytest.raises(InvalidAppError, match=r"roles\.0\.extra: Role has no such field"):
        app_from_dict(plain)


@pytest.mark.parametrize("value", [b"hunter2", {1: b"hunter2"}, {b"hunter2": 1}, [b"hunter2"], {"a": b"hunter2"}])
@pytest.mark.parametrize("field", ["env", "args"])
def test_errors_never_show_a_value_of_env_or_args(field, value):
    given = {"DB_PASSWORD": value} if field == "env" else [value]
    role = {"name": "w", "image": "", "entrypoint": "true", field: given}

    for convert in (
        lambda: app_from_dict({"name": "a", "roles": [role]}),
        lambda: app_to_dict(AppDef("a", [Role(**role)])),
    ):
        with pytest.raises(InvalidAppError, match=rf"roles\.0\.{field}\.(DB_PASSWORD|0)") as caught:
            convert()
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a", **{f"retry_policies_{n}": 0 for n in range(20_000)}},
        {"name": "a", "roles": [{"name": "r", "image": "x", **{f"retry_policies_{n}": 0 for n in range(20_000)}}]},
        {"name": "a", "roles": [{"name": "r", "image": "x", "k" * 2_000_000: 0}]},
        {"name": "a", "roles": [{"name": "r", "image": "x", "args": [0] * 20_000}]},
        {"name": "a", "roles": [{"name": "r", "image": "x", "mounts": [{}] * 20_000}]},
    ],
    ids=["keys of the app", "keys of a role", "long key", "args", "mounts"],
)
def test_an_error_about_a_hostile_dict_is_short(change):
    with pytest.raises(InvalidAppError) as refused:
        app_from_dict(change)
    assert len(str(refused.value)) < 20_000


def test_few_advices_are_computed_for_a_hostile_dict(monkeypatch):
    """Each takes a tenth of a millisecond, while all apps of the connection wait."""
    computed = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda *_, **__: computed.append(1) or [])
    with pytest.raises(InvalidAppError):
        app_from_dict({"name": "a", "roles": [{"name": "r", "image": "x", f"k{n}": 0} for n in range(1000)]})
    assert len(computed) <= 21


@pytest.mark.parametrize("metadata", [{"x": [[]] * 100_001}, {"x": [[[]] * 1000] * 101}], ids=["one", "nested"])
def test_an_app_with_too_many_items_is_refused_when_written_and_when_read(metadata):
    app = AppDef("a", [Role("r", "x")], metadata)
    for act in (app_to_dict, lambda app: app_from_dict({"name": app.name, "metadata": app.metadata})):
        with pytest.raises(InvalidAppError, match="more than 100000 items"):
            act(app)
