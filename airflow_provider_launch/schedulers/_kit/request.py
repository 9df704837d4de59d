"""Common fields of all requests, the options of single roles, and the readable text of a request, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from airflow_provider_launch.schedulers.environment import GPU_VARIABLES, inherited_env, port_variable
from airflow_provider_launch.schedulers.structured_opts import StructuredOpts, checked_options, resolve_options
from airflow_provider_launch.specs.app_dict import app_from_dict
from airflow_provider_launch.specs.errors import InvalidAppError, InvalidRunConfigException
from airflow_provider_launch.specs.roles import MAX_REPLICAS, MAX_ROLE_NAME, MAX_ROLES, AppDef, RetryPolicy, Role
from airflow_provider_launch.util.untrusted import LARGEST_INT, UntrustedError

_POLICIES = frozenset(policy.value for policy in RetryPolicy)
NOT_STORED = MappingProxyType({"is_stored": False})
"""Metadata of a field that only the submission needs: a mapping that is not a part of the record."""
FIRST_PORT = 20000
"""The first port that is assigned if a role leaves the choice to the launcher."""
_PORTS = 10_000
"""Number of ports that may be assigned."""


@dataclass
class RoleRequest:
    """The part of a role's request that all backends have; each backend adds its own fields."""

    name: str
    slug: str
    """The name of the role in names of native objects."""
    num_replicas: int
    entrypoint: str | None
    """None means the ENTRYPOINT of the image."""
    args: list[str]
    """The arguments with macros, which are replaced per replica."""
    env: dict[str, str]
    """The role's own variables, with macros."""
    copied_env: dict[str, str]
    """Variables of the launcher that the replicas inherit."""
    policy: str
    """The value of a `RetryPolicy`."""
    max_retries: int

    @property
    def program(self) -> str:
        """The program, for schedulers that refuse the ENTRYPOINT of an image."""
        assert self.entrypoint is not None
        return self.entrypoint


RoleT = TypeVar("RoleT", bound=RoleRequest)


@dataclass
class StoredRequest:
    """A request that is stored in the record of its app."""

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain JSON, without fields of the kind `NOT_STORED`."""
        left_out = [item.name for item in fields(self) if item.metadata == NOT_STORED]
        document = asdict(replace(self, **{name: {} for name in left_out}))
        return {name: value for name, value in document.items() if name not in left_out}


@dataclass
class AppRequest(StoredRequest, Generic[RoleT]):
    """All that is needed to run an app, as it is stored in the app's record."""

    app_id: str
    name: str
    spec_hash: str
    ports: dict[str, int]
    """Name of a variable to its port."""
    time_limit_s: float | None
    roles: list[RoleT]
    app: dict[str, Any]
    """The app as it was submitted."""

    @cached_property
    def app_def(self) -> AppDef:
        """The app as it was submitted; cached, because each poll needs it."""
        return stored_app(self.app)

    def role(self, name: str) -> RoleT:
        """Return the role of that name."""
        return next(role for role in self.roles if role.name == name)


def stored_app(document: Mapping[str, Any]) -> AppDef:
    """Return the app in a record, which a program or another user may have changed since the launch.

    Refuses a document that is not an app, or has more replicas than possible: each takes memory and time in every poll.
    """
    roles = document.get("roles")
    if isinstance(roles, Sequence) and len(roles) > MAX_ROLES:
        raise UntrustedError(f"it has {len(roles)} roles; at most {MAX_ROLES} are possible")
    app = app_from_dict(document)
    refuse_long_names(role.name for role in app.roles)
    refuse_counts([role.num_replicas for role in app.roles])
    return app


def refuse_counts(counts: Sequence[int]) -> None:
    """Refuse numbers of replicas that the roles of a launched app cannot have."""
    if not all(type(count) is int for count in counts):
        raise UntrustedError("a number of replicas is not an integer")
    if min(counts, default=0) < 0 or sum(counts) > MAX_REPLICAS:
        raise UntrustedError(f"it has {sum(counts)} replicas; at most {MAX_REPLICAS} are possible")


def refuse_long_names(names: Iterable[str]) -> None:
    """Refuse names of roles that a launched app cannot have; each replica has a copy of the name in several texts."""
    if (longest := max(map(len, names), default=0)) > MAX_ROLE_NAME:
        raise UntrustedError(f"the name of a role has {longest} characters; at most {MAX_ROLE_NAME} are possible")


RequestT = TypeVar("RequestT", bound=AppRequest[Any])


def request_from_json(
    request_type: type[RequestT], role_type: type[RoleRequest], document: Mapping[str, Any]
) -> RequestT:
    """Return the request from the result of `to_json`; refuse wrong types, and more replicas than possible."""
    if len(document["roles"]) > MAX_ROLES:
        raise UntrustedError(f"it has {len(document['roles'])} roles; at most {MAX_ROLES} are possible")
    request = request_type(**{**document, "roles": [role_type(**role) for role in document["roles"]]})
    refuse_counts([role.num_replicas for role in request.roles])
    _refuse_other_types(request)
    if request.app_def.roles and [*map(_counted, request.app_def.roles)] != [*map(_counted, request.roles)]:
        raise UntrustedError("its roles differ from those of the app")
    return request


def _refuse_other_types(request: AppRequest[Any]) -> None:
    """Refuse a request whose common fields have values that would fail later, in a call about many apps."""
    mappings = [request.ports, request.app, *(env for role in request.roles for env in (role.env, role.copied_env))]
    if not all(isinstance(each, Mapping) for each in mappings):
        raise UntrustedError("a field with names and values has another type")
    if not all(isinstance(role.args, list) for role in request.roles):
        raise UntrustedError("arguments are not a list")
    texts = [request.app_id, request.name, request.spec_hash, *request.ports]
    for role in request.roles:
        texts += [role.name, role.slug, role.entrypoint or "", *role.args]
        texts += [text for env in (role.env, role.copied_env) for pair in env.items() for text in pair]
    if not all(isinstance(text, str) for text in texts):
        raise UntrustedError("a text has another type")
    # Each path of a file has the slug of its role.
    refuse_long_names(name for role in request.roles for name in (role.name, role.slug))
    numbers = [*request.ports.values(), *(role.max_retries for role in request.roles)]
    if not all(type(number) is int for number in numbers) or not is_seconds(request.time_limit_s):
        raise UntrustedError("a number has another type")
    if not all(isinstance(role.policy, str) and role.policy in _POLICIES for role in request.roles):
        raise UntrustedError("a policy is not one of an app")


def is_seconds(value: object) -> bool:
    """Return whether a value of a record is None or a number of seconds."""
    return value is None or (type(value) in {int, float} and 0 <= value <= LARGEST_INT)  # type: ignore[operator]


def _counted(role: Role | RoleRequest) -> tuple[str, int]:
    return role.name, role.num_replicas


def common_fields(
    role: Role, slug: str, environ: Mapping[str, str], copy_env: Iterable[str] | None, given: Iterable[str]
) -> dict[str, Any]:
    """Return the fields of a `RoleRequest`, as keywords for a backend's subclass.

    Replicas inherit the variables of `environ` that match `copy_env`, except those that the engine sets: name patterns
    in `given`, and with GPUs the GPU variables.
    """
    return {
        "name": role.name,
        "slug": slug,
        "num_replicas": role.num_replicas,
        "entrypoint": role.entrypoint,
        "args": list(role.args),
        "env": dict(role.env),
        "copied_env": inherited_env(
            environ, copy_env or [], [*given, *(GPU_VARIABLES if role.resource.gpu > 0 else ())]
        ),
        "policy": RetryPolicy(role.retry_policy).value,
        "max_retries": role.max_retries,
    }


def assign_ports(app: AppDef, start: int = 0) -> dict[str, int]:
    """Return the port of each variable, for schedulers that give each replica its own network.

    There a port only has to differ from the others of the app. Apps that may share the network of a host have different
    `start`.
    """
    taken = {port for role in app.roles for port in role.port_map.values()}
    tried = (FIRST_PORT + (start + n) % _PORTS for n in range(_PORTS))
    free = (port for port in tried if port not in taken)
    return {
        port_variable(role.name, name): port or next(free) for role in app.roles for name, port in role.port_map.items()
    }


def format_app(app_id: str, name: str, detail: str, time_limit_s: float | None) -> str:
    """Return the first line of a request's text: id, name, `detail` of the backend, time limit."""
    limit = "" if time_limit_s is None else f", time limit {time_limit_s:g} s"
    return f"app {app_id} ({name}){detail}{limit}"


def format_role(
    name: str,
    num_replicas: int,
    what: str,
    *,
    policy: str,
    max_retries: int,
    details: Iterable[str] = (),
    replica: Callable[[int], str] | None = None,
    shown: int = 1,
) -> list[str]:
    """Return the lines of one role in a request's text.

    `what` is the image or directory in which the replicas run. `replica` returns the text of a replica, if the backend
    shows single ones, of which it shows the first `shown`.
    """
    lines = [f"role {name}: {num_replicas} x {what}"]
    if max_retries:
        lines.append(f"  retries: {max_retries} ({policy})")
    lines += [f"  {detail}" for detail in details]
    if replica is not None:
        texts = [replica(k) for k in range(min(num_replicas, shown))]
        if len(texts) > 1 and _differ_by_number(texts):
            return [*lines, texts[0], f"  ... and {num_replicas - 1} more that differ by their number only"]
        lines += texts
        if num_replicas > shown:
            lines.append(f"  ... and {num_replicas - shown} more replicas")
    return lines


def _differ_by_number(texts: Sequence[str]) -> bool:
    """Return whether the texts of replicas 0, 1, ... differ only in the number of the replica."""
    parts = [re.split(r"(\d+)", text) for text in texts]
    if len({len(each) for each in parts}) > 1:
        return False
    columns = zip(*parts, strict=True)
    numbers = tuple(map(str, range(len(texts))))
    return all(len(set(column)) == 1 or column == numbers for column in columns)


BY_ROLE = "by_role"
"""The option that holds the options of single roles."""

OptsT = TypeVar("OptsT", bound=StructuredOpts)


def options_by_role(app: AppDef, opts: OptsT, of_app: Collection[str]) -> dict[str, OptsT]:
    """Return the options of each role: those of the launch, overridden by those for the role in its `by_role`.

    Refuses roles that do not exist, and options that are unknown, wrong, or in `of_app`: those apply to the whole app.
    """
    given: Mapping[str, Mapping[str, Any]] = opts.get(BY_ROLE) or {}
    names = [role.name for role in app.roles]
    if unknown := [name for name in given if name not in names]:
        raise InvalidAppError(
            f"option {BY_ROLE}: the app has no role {unknown[0]!r}; its roles are {', '.join(map(repr, names))}"
        )
    return {name: _of_role(name, opts, given.get(name) or {}, of_app) for name in names}


def _of_role(name: str, opts: OptsT, given: Mapping[str, Any], of_app: Collection[str]) -> OptsT:
    if not given:
        return opts
    kind = type(opts)
    try:
        own = checked_options(kind).registered(given, strict=True)
        if shared := sorted(own.keys() & {BY_ROLE, *of_app}):
            raise InvalidAppError(
                f"option {BY_ROLE}: role {name!r} has {shared[0]!r}, which applies to the whole app; set it outside of "
                f"{BY_ROLE}"
            )
        return resolve_options(kind, {**dict(opts.items()), **own}, strict=True)
    except InvalidRunConfigException as error:
        reason = str(error).partition(". Given:")[0]
        raise InvalidAppError(f"option {BY_ROLE}: role {name!r}: {reason}") from error
