import copy
import dataclasses
import math
import re
from dataclasses import dataclass, field

import pytest

from airflow_provider_launch.specs import (
    NULL_RESOURCE,
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
    check_app,
    macros,
    type_check,
)


def _role(**fields):
    return Role(**{"name": "trainer", "image": "", "entrypoint": "python", **fields})


def _app(**fields):
    return AppDef("train", [_role(**fields)])


@dataclass
class _Custom(Role):
    numbers: list[int] = field(default_factory=list)


GOOD = [
    _app(),
    _app(image="<NONE>", resource=NULL_RESOURCE),
    _app(args=[macros.replica_id, "{{ ds }}", "", "ä\n$'\""], env={"A": "{{ var.value.x }}", "ä-b": ""}),
    _app(name="{{ params.name\n}}", entrypoint="{{ x }}", image="{{ y }}"),
    _app(num_replicas=4, min_replicas=4, max_retries=2, retry_policy=RetryPolicy.ROLE),
    _app(port_map={"a": 0, "b": 65535}),
    _app(resource=Resource(cpu=-1, gpu=0, memMB=1, capabilities={"x": object()}, devices={"d": 0}, tags={"t": 1})),
    _app(mounts=[BindMount("{{ a }}", "/b"), VolumeMount("v", "/b", read_only=True), DeviceMount("/d", "/d", "r")]),
    _app(mounts=[DeviceMount("/d", "/d", "{{ p }}")]),
    _app(workspace=Workspace({"~/a": ""})),
    _app(metadata={"any": [object(), {1: 2}]}),
    AppDef("a", [_Custom(name="r", image="", entrypoint="x", numbers=["not looked at"])]),
    AppDef("a", [_role(name=f"r{number}", num_replicas=10) for number in range(1000)]),
    AppDef("{{ dag.dag_id }}", [_role(name="a"), _role(name="b")]),
]


@pytest.mark.parametrize("app", GOOD, ids=range(len(GOOD)))
def test_a_good_app_passes_and_stays_as_it_is(app):
    before, roles = copy.copy(vars(app.roles[0])), list(app.roles)

    check_app(app)

    assert [id(role) for role in app.roles] == [id(role) for role in roles]
    assert all(vars(app.roles[0])[name] is value for name, value in before.items())


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"args": ["-m", 5]}, "roles.0.args.1: must be text, but is of type int; use str()"),
        ({"args": "-m x"}, "roles.0.args: must be a list, but is of type str; write [...]"),
        ({"args": ("a",)}, "roles.0.args: must be a list, but is of type tuple; write [...]"),
        ({"args": [b"x"]}, "roles.0.args.0: must be text, but is of type bytes"),
        (
            {"args": ["a\0b"]},
            "roles.0.args.0: the argument contains a NUL character, which no program can receive; remove it",
        ),
        ({"env": {"A": 5}}, "roles.0.env.A: must be text, but is of type int; use str()"),
        ({"env": {"A": None}}, "roles.0.env.A: must be text, but is of type NoneType"),
        ({"env": {5: "x"}}, "roles.0.env.5: the key must be text, but 5 is of type int"),
        ({"env": {"a=b": ""}}, "roles.0.env.a=b: 'a=b' cannot name a variable; use a text without '=' and NUL"),
        ({"env": {"": ""}}, "roles.0.env.: '' cannot name a variable"),
        ({"env": {"A": "secret\0"}}, "roles.0.env.A: the value contains a NUL character"),
        ({"env": ["A=b"]}, "roles.0.env: must be a dict, but is of type list"),
        ({"name": ""}, "roles.0.name: is empty; give the role a name"),
        ({"name": "a\nb"}, "roles.0.name: 'a\\nb' contains a control character; remove it"),
        ({"name": None}, "roles.0.name: must be text, but None is of type NoneType"),
        ({"image": None}, "roles.0.image: must be text, but None is of type NoneType"),
        ({"entrypoint": "<MISSING>"}, "roles.0.entrypoint: is missing; give the program that each replica runs"),
        ({"entrypoint": " "}, "roles.0.entrypoint: is missing; give the program that each replica runs"),
        ({"entrypoint": "a\0"}, "roles.0.entrypoint: 'a\\x00' contains a NUL character"),
        ({"num_replicas": 0}, "roles.0.num_replicas: must be at least 1, but is 0"),
        (
            {"num_replicas": 10**9},
            "roles.0.num_replicas: an app has at most 10000 replicas, but this one has 1000000000, 1000000000 of them",
        ),
        ({"num_replicas": True}, "roles.0.num_replicas: must be a whole number, but True is of type bool; write 1"),
        (
            {"num_replicas": "{{ n }}"},
            "roles.0.num_replicas: must be a whole number, but '{{ n }}' is of type str; a num",
        ),
        ({"num_replicas": 1.0}, "roles.0.num_replicas: must be a whole number, but 1.0 is of type float"),
        ({"max_retries": -1}, "roles.0.max_retries: must not be negative, but is -1; 0 means no retry"),
        ({"min_replicas": 2}, "roles.0.min_replicas: must not exceed num_replicas (1), but is 2"),
        ({"min_replicas": -1}, "roles.0.min_replicas: must not be negative, but is -1"),
        (
            {"retry_policy": "ROLE"},
            "roles.0.retry_policy: must be a member of RetryPolicy, but 'ROLE' is of type str; write RetryPolicy.ROLE",
        ),
        ({"retry_policy": None}, "roles.0.retry_policy: must be a member of RetryPolicy, but None is of type NoneType"),
        ({"resource": None}, "roles.0.resource: must be a Resource, but None is of type NoneType"),
        ({"resource": Resource(1, 0.5, 1)}, "roles.0.resource.gpu: must be a whole number, but 0.5 is of type float"),
        ({"resource": Resource(True, 0, 1)}, "roles.0.resource.cpu: must be a number, but True is of type bool; wri"),
        (
            {"resource": Resource("half", 0, 1)},
            "roles.0.resource.cpu: must be a number, but 'half' is of type str; wri",
        ),
        (
            {"resource": Resource("{{ n }}", 0, 1)},
            "roles.0.resource.cpu: must be a number, but '{{ n }}' is of type str; a",
        ),
        ({"resource": Resource(-0.5, 0, 1)}, "roles.0.resource.cpu: must not be negative, but is -0.5; -1 means"),
        ({"resource": Resource(float("nan"), 0, 1)}, "roles.0.resource.cpu: must be a number of CPUs, but is nan"),
        ({"resource": Resource(1, 0, 1, cpu_request=2)}, "roles.0.resource.cpu_request: must not exceed cpu (1), w"),
        (
            {"resource": Resource(1, 0, 1, memMB_request=0)},
            "roles.0.resource.memMB_request: must be positive, but is 0",
        ),
        (
            {"resource": Resource(1, -2, 1)},
            "roles.0.resource.gpu: must not be negative, but is -2; -1 means unspecified",
        ),
        (
            {"resource": Resource(1, 0, 1, devices={"d": -1})},
            "roles.0.resource.devices.d: must not be negative, but is -1",
        ),
        (
            {"port_map": {"a": 65536}},
            "roles.0.port_map.a: 65536 is not a valid port; use 1 to 65535, or 0 for a free one",
        ),
        ({"port_map": {"a": -1}}, "roles.0.port_map.a: -1 is not a valid port"),
        ({"port_map": {"a": "80"}}, "roles.0.port_map.a: must be a whole number, but '80' is of type str"),
        ({"port_map": {"": 80}}, "roles.0.port_map.: a port has an empty name; give it one"),
        (
            {"mounts": ["/a"]},
            "roles.0.mounts.0: must be one of BindMount, VolumeMount, DeviceMount, but '/a' is of type str",
        ),
        ({"mounts": [BindMount("/a", 5)]}, 'roles.0.mounts.0.dst_path: must be text, but 5 is of type int; write "5"'),
        ({"mounts": [BindMount("", "/b")]}, "roles.0.mounts.0.src_path: is empty; give a path"),
        ({"mounts": [VolumeMount("", "/b")]}, "roles.0.mounts.0.src: is empty; name a volume"),
        ({"mounts": [VolumeMount("a", "/b\0")]}, "roles.0.mounts.0.dst_path: '/b\\x00' contains a NUL character"),
        (
            {"mounts": [VolumeMount("a", "/b", "no")]},
            "roles.0.mounts.0.read_only: must be True or False, but 'no' is of type str",
        ),
        ({"mounts": [DeviceMount("a", "/b", "rx")]}, "roles.0.mounts.0.permissions: 'rx' must be some of r, w and m"),
        ({"mounts": [DeviceMount("a", "/b", "")]}, "roles.0.mounts.0.permissions: '' must be some of r, w and m"),
        ({"workspace": "~/a"}, "roles.0.workspace: must be a Workspace, but '~/a' is of type str"),
        (
            {"workspace": Workspace({"a": None})},
            "roles.0.workspace.projects.a: must be text, but None is of type NoneType",
        ),
        ({"metadata": None}, "roles.0.metadata: must be a dict, but None is of type NoneType"),
    ],
)
def test_a_wrong_field_is_reported_with_path_value_and_fix(fields, line):
    with pytest.raises(InvalidAppError) as caught:
        check_app(_app(**fields))

    head, *lines = str(caught.value).split("\n")
    assert head == "app 'train' is not valid:"
    assert len(lines) == 1
    assert lines[0].startswith(f"  {line}")


@pytest.mark.parametrize(
    ("app", "line"),
    [
        (AppDef("a"), "roles: the app has no role, so nothing would run; add a Role"),
        (AppDef("", [_role()]), "name: is empty; give the app a name"),
        (AppDef(5, [_role()]), 'name: must be text, but 5 is of type int; write "5"'),
        (AppDef("a", (_role(),)), "roles: must be a list, but is of type tuple; write [...]"),
        (AppDef("a", [{"name": "x"}]), "roles.0: must be a Role, but is of type dict; app_from_dict reads dicts"),
        (
            AppDef("a", [_role(name=f"r{number}") for number in range(1001)]),
            "roles: an app has at most 1000 roles, but this one has 1001; divide it",
        ),
        (
            AppDef("a", [_role(name="a", num_replicas=6000), _role(name="b", num_replicas=6001)]),
            "roles.1.num_replicas: an app has at most 10000 replicas, but this one has 12001, 6001 of them in role 'b'",
        ),
        (
            AppDef("a", [_role(name="x" * 65_536)]),
            "roles.0.name: has 65536 characters, but at most 1000 are possible; shorten it",
        ),
        (AppDef("a", [_role(), _role()]), "roles.1.name: 'trainer' is also the name of role 0; names must differ"),
        (AppDef("a", [_role()], metadata=[]), "metadata: must be a dict, but is of type list"),
        ({"name": "a"}, "app: must be an AppDef, but is of type dict; app_from_dict reads dicts"),
        (None, "app: must be an AppDef, but None is of type NoneType"),
    ],
)
def test_a_wrong_app_is_refused(app, line):
    with pytest.raises(InvalidAppError, match=re.escape(f"\n  {line}")):
        check_app(app)


def test_all_problems_are_listed_in_one_error():
    app = AppDef("a", [_role(args=[1], num_replicas=0), _role(port_map={"p": -1}, entrypoint="")])

    with pytest.raises(InvalidAppError) as caught:
        check_app(app)

    paths = [line.strip().partition(":")[0] for line in str(caught.value).split("\n")[1:]]
    assert paths == [
        "roles.0.args.0",
        "roles.0.num_replicas",
        "roles.1.entrypoint",
        "roles.1.port_map.p",
        "roles.1.name",
    ]


@pytest.mark.parametrize(
    ("count", "last"), [(20, "roles.0.args.19: must be text"), (21, "and more"), (500, "and more")]
)
def test_the_first_problems_are_listed(count, last):
    with pytest.raises(InvalidAppError) as caught:
        check_app(AppDef("a", [_role(args=[1] * count)]))

    lines = str(caught.value).splitlines()[1:]
    assert lines[19].strip().startswith("roles.0.args.19: must be text")
    assert lines[-1].strip().startswith(last)
    assert len(lines) == min(count, 21)


@pytest.mark.parametrize(
    "value",
    ["hunter2\0", "hunter2\ud800", "hunter2" * 20_000, 31337, ["hunter2"], {"hunter2": 1}],
    ids=["NUL", "surrogate", "long", "number", "list", "dict"],
)
@pytest.mark.parametrize("field", ["env", "args"])
def test_errors_never_show_a_value_of_env_or_args(field, value):
    """Error texts are written to task logs."""
    with pytest.raises(InvalidAppError) as caught:
        check_app(_app(env={"PASSWORD": value}) if field == "env" else _app(args=["--token", value]))

    assert "hunter2" not in str(caught.value)
    assert "31337" not in str(caught.value)
    assert f"roles.0.{'env.PASSWORD' if field == 'env' else 'args.1'}: " in str(caught.value)


def test_an_error_does_not_show_arguments_that_are_not_a_list():
    with pytest.raises(InvalidAppError, match=r"roles\.0\.args: must be a list, but is of type str; write") as caught:
        check_app(_app(args="--token hunter2"))

    assert "hunter2" not in str(caught.value)


def test_a_long_value_is_cut():
    with pytest.raises(InvalidAppError) as caught:
        check_app(_app(entrypoint="x" * 10_000 + "\0"))

    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": "a\ud800"}, "name"),
        ({"image": "\udcff"}, "image"),
        ({"args": ["a", "\ud800"]}, "args.1"),
        ({"env": {"A": "\ud800"}}, "env.A"),
        ({"port_map": {"\ud800": 1}}, "port_map.'\\\\ud800'"),
    ],
)
def test_half_a_surrogate_pair_is_refused(fields, path):
    """It cannot be encoded: some schedulers would change it silently."""
    with pytest.raises(InvalidAppError, match=rf"\n  roles\.0\.{path}: .*surrogate") as caught:
        check_app(_app(**fields))

    assert str(caught.value).encode()


@pytest.mark.parametrize(("text", "size"), [("x" * 131_071, 0), ("x" * 131_072, 131_072), ("é" * 65_536, 131_072)])
def test_an_argument_that_no_kernel_passes_on_is_refused(text, size):
    app = AppDef("app", [Role("main", "", entrypoint="sh", args=["-c", text])])
    if not size:
        check_app(app)
        return
    with pytest.raises(
        InvalidAppError, match=rf"roles\.0\.args\.1: the argument has {size} bytes.*; put it into a file"
    ):
        check_app(app)


def test_a_variable_counts_with_its_name_and_without_its_macros():
    fits = {"LONG": "x" * 131_066, "DOLLARS": "$$" * 70_000}
    check_app(AppDef("app", [Role("main", "", entrypoint="sh", env=fits)]))
    with pytest.raises(InvalidAppError, match="with its name 131072 bytes") as caught:
        check_app(AppDef("app", [Role("main", "", entrypoint="sh", env={"LONG": "x" * 131_067})]))

    assert "xxx" not in str(caught.value)


def test_an_app_may_run_the_entrypoint_of_its_image() -> None:
    app = AppDef("app", [Role("main", "repo/image:1", entrypoint=None)])
    check_app(app)

    assert app_from_dict(app_to_dict(app)) == app


VALUES = [
    None, True, 0, -1, 2**70, 1.5, math.nan, "", "a", "ä", "\ud800", b"a", [], ["a"], ["\ud800"], [1], ("a",), {},
    {"a": "b"}, {"a": 1}, {"a": True}, {"a": None}, {1: "a"}, {"a": "\ud800"}, {"\ud800": 1}, {"a": object()}, "ROLE",
    RetryPolicy.ROLE, NULL_RESOURCE, Resource(cpu=1, gpu=0, memMB=1, tags={1: 2}), BindMount("/a", "/b"),
    [BindMount("/a", "/b")], Workspace({"/a": ""}), [_role()], [_role(args=[1])], [_Custom("a", "")], [None],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_no_wrong_type_passes_the_check_without_pydantic(value):
    """Plain apps are not checked by pydantic, whose schema takes longer to build than a small task runs."""
    for where in ("app", "role", "resource"):
        app = _app(resource=Resource(cpu=1, gpu=0, memMB=1))
        item = {"app": app, "role": app.roles[0], "resource": app.roles[0].resource}[where]
        for each in dataclasses.fields(item):
            before = getattr(item, each.name)
            setattr(item, each.name, value)
            if type_check._is_plain(app):
                type_check._adapter().validate_python([app])
            setattr(item, each.name, before)


def test_a_usual_app_is_checked_without_pydantic():
    """Otherwise the check above has no subject."""
    app = _app(args=["-c", "true"], env={"A": "b"}, port_map={"http": 80}, max_retries=1, resource=Resource(1, 0, 512))

    assert type_check._is_plain(app)
    assert not type_check._is_plain(_app(workspace=Workspace({"/a": ""})))
