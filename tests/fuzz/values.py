"""Random values of apps, options and connections: valid, almost valid and invalid.

Values under names of secrets contain `MARKER`, so that tests can find leaks.
"""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from airflow_provider_launch.schedulers.docker.options import DockerConnection, DockerOpts
from airflow_provider_launch.schedulers.local.options import LocalConnection, LocalOpts
from airflow_provider_launch.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount
from airflow_provider_launch.specs.workspaces import Workspace

MARKER = "hunter2-is-no-word"
QUIET = "quiet-is-no-name"
"""Value under unlisted names: requests may show it, errors and texts of apps must not."""

OPTIONS = {
    "launch_local": (LocalConnection, LocalOpts),
    "launch_docker": (DockerConnection, DockerOpts),
    "launch": (),
}
SECRET_VARIABLES = [
    "DB_PASSWORD", "Passwd", "SECRET", "API_TOKEN", "X_API_KEY", "AWS_SECRET_ACCESS_KEY", "PRIVATE_KEY",
    "GCP_CREDENTIALS", "DB_DSN", "MYSQL_PWD", "HTTP_AUTH", "AIRFLOW_CONN_DB",
]  # fmt: skip
OTHER_VARIABLES = ["QZX", "lorem_ipsum", "Zufall", "x9", "\u00e9t\u00e9"]
SECRET_OPTIONS = [
    "registry_password", "registryPassword", "registry_pasword", "REGISTRY_PASSWORD", "registry.password", "password",
    "passphrase", "auth_token", "api_key", "client_secret",
]  # fmt: skip

odd_texts = st.sampled_from([
    "", " ", "\0", "\n", "a\tb", "a b", "$HOME", "${replica_id}", "${", "$$", "{{ x }}", "{% if %}", "\ud800", "\udcff",
    "ünï ☃", "x" * 300, "-1", "0", "1", "1.5", "true", "no", "[]", "{}", "null", "nan", "inf", "a:b", "a,b;c", "k:v",
    "=", "../..", "/", "~", "%s", "%(x)s", "{0}", "1:2", "\u0663", "9" * 400, "1e999", "²",
])  # fmt: skip
texts = st.one_of(st.sampled_from(["a", "worker", "main-1"]), odd_texts, st.text(max_size=5))
numbers = st.one_of(
    st.integers(-2, 70000),
    st.sampled_from([0, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, float("nan"), float("inf"), -1e308]),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
documents = st.one_of(
    leaves,
    st.lists(leaves, max_size=2),
    st.dictionaries(texts, leaves, max_size=2),
    st.just([[[]]]),
    st.just({"a": {"b": [None]}}),
)


class Unlike:
    """An object of a foreign class."""


class Secret:
    """An object whose text is a secret."""

    def __repr__(self) -> str:
        return MARKER


things = st.one_of(
    documents,
    st.sampled_from([b"bytes", (), ("a",), {"a"}, frozenset(), Unlike(), Unlike, len, 1j]),
    st.sampled_from([{1: 2}, {None: "a"}, {"a": {1}}]),
)
"""Values that a DAG file may contain in addition to JSON."""

secrets = st.sampled_from([
    MARKER, f"a {MARKER}\n", f"${{app_id}}{MARKER}", f"{MARKER}\0", f"{MARKER}\ud800", MARKER.encode(), Secret(),
    [MARKER], (MARKER,), {"a": MARKER}, {MARKER: 1}, {MARKER.encode(): [MARKER.encode()]},
])  # fmt: skip
quiet = st.sampled_from(
    [QUIET, f"a {QUIET}\n", f"{QUIET}\0", QUIET.encode(), [QUIET], (QUIET,), {"a": QUIET}, {QUIET: 1}]
)
json_secrets = st.sampled_from([MARKER, f"a {MARKER}", [MARKER], {"a": MARKER}, {MARKER: 1}])


def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a valid value in 15 of 16 cases."""
    # Not `integers`, which prefers its bounds.
    return st.sampled_from(range(16)).flatmap(lambda at: bad if at == 15 else good)


# ---- options ---------------------------------------------------------------------------------------------------------


_BODY = st.dictionaries(
    st.sampled_from(["Tty", "HostConfig", "Env", "Labels", "Image", "Healthcheck"]),
    st.one_of(documents, st.dictionaries(st.sampled_from(["Dns", "Tmpfs", "NetworkMode"]), documents, max_size=2)),
    max_size=2,
)
_OF_ROLE = {"overlay": _BODY, "user": documents, "ulimits": documents, "network": documents, "overly": documents}
FREE = {
    "overlay": _BODY,
    "by_role": st.dictionaries(st.sampled_from(["w", "x"]), st.fixed_dictionaries({}, optional=_OF_ROLE), max_size=2),
}
"""Values of options that have no narrower type than `Any`."""


def _right(cls: type) -> dict[str, st.SearchStrategy[Any]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    names = [item.name for item in fields(cls)]
    return {name: FREE[name] if name in FREE else st.from_type(hints[name]) for name in names}


RIGHT = {conn_type: [_right(cls) for cls in classes] for conn_type, classes in OPTIONS.items()}
PLUGIN = {"queue": texts, "tags": st.lists(texts, max_size=2)}
"""The options of the plug-in."""
_ALL = {name: value for found in RIGHT.values() for options in found for name, value in options.items()}


@st.composite
def options(draw: st.DrawFn, known: dict[str, st.SearchStrategy[Any]], *, is_json: bool) -> dict[Any, Any]:
    """Some options, mostly existing ones with valid values; None and text as from a form."""
    found: dict[Any, Any] = {}
    wild, hidden = (documents, json_secrets) if is_json else (things, secrets)
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(range(16)))
        if kind == 15:
            found[draw(st.sampled_from(SECRET_OPTIONS))] = draw(hidden)
        elif kind == 14 or not known:
            found[draw(st.one_of(texts, st.sampled_from([*_ALL])))] = draw(wild)
        else:
            name = draw(st.sampled_from([*known]))
            right = mostly(known[name], st.one_of(texts, wild))
            parts = name.split("_")
            camel = parts[0] + "".join(part.title() for part in parts[1:])
            spelt = draw(mostly(st.sampled_from([name, camel]), st.just(f"{name}x")))
            found[spelt] = draw(hidden if "password" in name else right)
    return found


def extras(conn_type: str) -> st.SearchStrategy[Any]:
    """The extra of a connection."""
    if conn_type != "launch":
        known = {name: value for found in RIGHT[conn_type] for name, value in found.items()}
        return options(known, is_json=True)
    params = {name: value for found in RIGHT.values() for name, value in (found[0] if found else {}).items()}
    good = {
        "scheduler": st.sampled_from(["fuzzed", "fuzzed", "fuzzed", "local", "docker"]),
        "params": options(params, is_json=True),
        "cfg": options(PLUGIN, is_json=True),
    }
    wrong = {**dict.fromkeys(good, documents), "schedule": documents, "password": json_secrets}
    return mostly(st.fixed_dictionaries(good), st.fixed_dictionaries({}, optional=wrong))


def cfgs(conn_type: str) -> st.SearchStrategy[Any]:
    """The options of one launch."""
    return options(RIGHT[conn_type][1] if RIGHT[conn_type] else PLUGIN, is_json=False)


# ---- apps ------------------------------------------------------------------------------------------------------------

names = mostly(st.sampled_from(["worker", "main", "ps", "Ä b", "a.b", "w-1"]), texts)
_variables = st.lists(
    st.sampled_from(["A", "PATH", "LAUNCH_APP_ID", "x y", *SECRET_VARIABLES, *OTHER_VARIABLES]), max_size=3, unique=True
)
envs = mostly(
    _variables.flatmap(
        lambda keys: st.fixed_dictionaries(
            {
                key: st.one_of(st.just(MARKER), secrets)
                if key in SECRET_VARIABLES
                else mostly(st.just(QUIET), quiet)
                if key in OTHER_VARIABLES
                else mostly(texts, things)
                for key in keys
            }
        )
    ),
    st.one_of(things, st.sampled_from([MARKER, MARKER.encode(), [MARKER], (MARKER,), Secret()])),
)
resources = st.fixed_dictionaries(
    {"cpu": numbers, "gpu": st.sampled_from([-1, 0, 0, 1]), "memMB": numbers},
    optional={
        "capabilities": documents,
        "devices": mostly(st.just({"vpc.amazonaws.com/efa": 1}), things),
        "tags": things,
    },
)
_mount_paths = {"dst_path": texts, "read_only": mostly(st.booleans(), things)}
mounts = st.one_of(
    st.fixed_dictionaries({"type": st.just("bind"), "src_path": texts, **_mount_paths}),
    st.fixed_dictionaries({"type": st.just("volume"), "src": texts, **_mount_paths}),
    st.fixed_dictionaries(
        {"type": st.just("device"), "src_path": texts, "dst_path": texts}, optional={"permissions": texts}
    ),
    st.fixed_dictionaries({"dst_path": texts}, optional={"src": texts, "src_path": texts, "type": things}),
)
_ROLE: dict[str, st.SearchStrategy[Any]] = {
    "min_replicas": mostly(st.sampled_from([None, 0, 1, 3]), things),
    "args": mostly(st.lists(texts, max_size=3), things),
    "env": envs,
    "num_replicas": mostly(st.integers(1, 4), st.one_of(things, st.integers(-1, 0))),
    "max_retries": mostly(st.integers(0, 3), things),
    "retry_policy": mostly(st.sampled_from([*RetryPolicy, "REPLICA", "ROLE"]), things),
    "resource": mostly(resources, things),
    "port_map": mostly(st.dictionaries(texts, mostly(st.integers(0, 70000), things), max_size=2), things),
    "metadata": mostly(st.dictionaries(texts, documents, max_size=2), things),
    "mounts": mostly(st.lists(mounts, max_size=2), things),
    "workspace": mostly(st.none(), st.one_of(things, st.just({"projects": {"/x": "y"}}))),
}


@st.composite
def roles(draw: st.DrawFn) -> dict[Any, Any]:
    """A role as a dict; at most some of its fields are wrong."""
    role: dict[Any, Any] = {
        "name": draw(names),
        "image": draw(mostly(st.sampled_from(["/", "/tmp", "busybox", "localhost:5000/busybox:1"]), things)),
        "entrypoint": draw(mostly(st.sampled_from(["sh", "/bin/true"]), things)),
    }
    for name in draw(st.lists(st.sampled_from([*_ROLE, "env", "env", "env"]), max_size=4, unique=True)):
        role[name] = draw(_ROLE[name])
    if draw(st.sampled_from(range(32))) == 31:
        role[draw(texts)] = draw(things)
    return role


apps = mostly(
    st.fixed_dictionaries(
        {"name": names, "roles": mostly(st.lists(mostly(roles(), things), min_size=1, max_size=2), things)},
        optional={"metadata": mostly(st.dictionaries(texts, documents, max_size=2), things), "rolls": things},
    ),
    things,
)
"""Apps as dicts."""


def as_object(app: Any) -> Any:
    """Return the app of these parts, built with the classes, which do not check values."""
    if not isinstance(app, dict) or not {"name"} <= set(app) <= {"name", "roles", "metadata"}:
        return app
    given = app.get("roles")
    made = [_role(role) for role in given] if isinstance(given, list) else given
    return AppDef(**{**app, "roles": made})


def _role(role: Any) -> Any:
    if not isinstance(role, dict):
        return role
    parts = dict(role)
    if isinstance(parts.get("resource"), dict):
        parts["resource"] = _made(Resource, parts["resource"])
    if isinstance(parts.get("workspace"), dict):
        parts["workspace"] = _made(Workspace, parts["workspace"])
    if isinstance(parts.get("mounts"), list):
        parts["mounts"] = [_mount(mount) for mount in parts["mounts"]]
    return _made(Role, parts)


def _mount(mount: Any) -> Any:
    if not isinstance(mount, dict) or mount.get("type") not in ("bind", "volume", "device"):
        return mount
    kinds = {"bind": BindMount, "volume": VolumeMount, "device": DeviceMount}
    return _made(kinds[mount["type"]], {key: value for key, value in mount.items() if key != "type"})


def _made(cls: Any, parts: dict[Any, Any]) -> Any:
    try:
        return cls(**parts)
    except TypeError:  # the error of Python
        return parts
