"""Check that an app is valid, before anything is submitted, and warn of parts that are probably a mistake.

Only errors of the app itself are found here. A scheduler refuses what it does not support at dry run.
"""

from __future__ import annotations

import math
import posixpath
import re
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.macros import macros, near_misses, port_macros
from airflow_provider_launch.specs.resources import Resource
from airflow_provider_launch.specs.roles import (
    MAX_REPLICAS,
    MAX_ROLE_NAME,
    MAX_ROLES,
    AppDef,
    BindMount,
    DeviceMount,
    RetryPolicy,
    Role,
    VolumeMount,
)
from airflow_provider_launch.specs.sentinels import MISSING
from airflow_provider_launch.specs.torch_env import PORT as TORCH_PORT
from airflow_provider_launch.specs.type_check import Problem, raise_problems, shown, type_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_PORT = 65535
_MAX_BYTES = 131_071
"""Maximum bytes of an argument, or of a variable with its name and `=`: MAX_ARG_STRLEN of Linux, less a NUL."""
_EMPTY_VALUES = macros.Values("", "", "", "")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NO_UNICODE = re.compile(r"[\ud800-\udfff]")


def check_app(app: AppDef) -> None:
    """Return if the app is valid; it is neither copied nor changed.

    Macros and templates count as text, so an app may be checked before it is rendered, and again afterwards.

    Raises:
        InvalidAppError: lists all problems, each with its path (`roles.0.args.1`), the value, and the fix.
    """
    problems = type_problems(app)
    wrong = {path for path, _ in problems}
    problems += [problem for problem in _app_problems(app) if problem[0] not in wrong]
    raise_problems(getattr(app, "name", app), problems)


# These functions also get values of a wrong type, which were already reported; they skip those.


def _app_problems(app: Any) -> Iterator[Problem]:
    if not isinstance(app, AppDef):
        return
    yield from _name_problems(("name",), app.name, "app")
    if app.roles == []:
        yield ("roles",), "the app has no role, so nothing would run; add a Role"
    yield from _size_problems(_list(app.roles))
    yield from _training_problems([role for role in _list(app.roles) if isinstance(role, Role)])
    first_of: dict[str, int] = {}
    for at, role in enumerate(_list(app.roles)):
        if not isinstance(role, Role):
            continue
        path = ("roles", at)
        yield from _role_problems(role, path)
        name = _text(role.name)
        if name and (first := first_of.setdefault(name, at)) != at:
            yield (*path, "name"), f"{shown(name)} is also the name of role {first}; names must differ"


def _size_problems(roles: list[Any]) -> Iterator[Problem]:
    if len(roles) > MAX_ROLES:
        yield ("roles",), f"an app has at most {MAX_ROLES} roles, but this one has {len(roles)}; divide it"
    counts = [role.num_replicas if _is_int(getattr(role, "num_replicas", None)) else 0 for role in roles]
    if (total := sum(counts)) > MAX_REPLICAS:
        at = counts.index(largest := max(counts))
        of_role = f"{largest} of them in role {shown(roles[at].name)}"
        path = ("roles", at, "num_replicas")
        yield path, f"an app has at most {MAX_REPLICAS} replicas, but this one has {total}, {of_role}; lower it"


def _training_problems(roles: list[Role]) -> Iterator[Problem]:
    ports = {f"{_text(role.name)}.{name}" for role in roles for name in _dict(role.port_map)}
    ports |= {f"{_text(role.name)}.{TORCH_PORT}" for role in roles if role.torch_env}
    for at, role in enumerate(roles):
        path = ("roles", at)
        if role.torch_env is True and at:
            yield (
                (*path, "torch_env"),
                "is for the first role, whose replica 0 coordinates the training; move this role to the front",
            )
        texts = [(("args", n), text) for n, text in enumerate(_list(role.args))]
        texts += [(("env", name), text) for name, text in _dict(role.env).items()]
        for place, text in texts:
            for name in port_macros(_text(text)):
                if name not in ports:
                    offered = ", ".join(sorted(ports)) or "none"
                    yield (
                        (*path, *place),
                        f"names port {shown(name)}, but the app has {offered}; add it to port_map",
                    )
    if roles and all(role.service is True for role in roles):
        yield ("roles",), "all roles are services, so the app would end at once; leave service out of one of them"


def _role_problems(role: Role, path: tuple[Any, ...]) -> Iterator[Problem]:
    yield from _name_problems((*path, "name"), role.name, "role")
    yield from _text_problems((*path, "image"), role.image)
    if role.entrypoint == MISSING or not _text(role.entrypoint, default="wrong").strip():
        cure = "give the program that each replica runs, or None for the ENTRYPOINT of the image"
        yield (*path, "entrypoint"), f"is missing; {cure}"
    yield from _text_problems((*path, "entrypoint"), role.entrypoint)
    for at, arg in enumerate(_list(role.args)):
        if reason := _character_problem(_text(arg)) or _length_problem(_text(arg)):
            # Do not show the argument: it may be a secret.
            yield (*path, "args", at), f"the argument {reason}"
    yield from _env_problems(role, path)
    yield from _number_problems(role, path)
    for name, port in _dict(role.port_map).items():
        if name == "":
            yield (*path, "port_map", name), "a port has an empty name; give it one"
        yield from _text_problems((*path, "port_map", name), name)
        if _is_int(port) and not 0 <= port <= _MAX_PORT:
            yield (*path, "port_map", name), f"{port} is not a valid port; use 1 to {_MAX_PORT}, or 0 for a free one"
    yield from _resource_problems(role.resource, (*path, "resource"))
    for at, mount in enumerate(_list(role.mounts)):
        yield from _mount_problems(mount, (*path, "mounts", at))


def _env_problems(role: Role, path: tuple[Any, ...]) -> Iterator[Problem]:
    for key, value in _dict(role.env).items():
        if not _text(key, default="wrong") or "=" in _text(key) or _character_problem(_text(key)):
            yield (*path, "env", key), f"{shown(key)} cannot name a variable; use a text without '=' and NUL"
        if reason := _character_problem(_text(value)) or _length_problem(_text(value), f"{_text(key)}="):
            # Do not show the value: it may be a secret.
            yield (*path, "env", key), f"the value {reason}"


def _number_problems(role: Role, path: tuple[Any, ...]) -> Iterator[Problem]:
    if _is_int(role.num_replicas) and role.num_replicas < 1:
        yield (*path, "num_replicas"), f"must be at least 1, but is {role.num_replicas}"
    if _is_int(role.max_retries) and role.max_retries < 0:
        yield (*path, "max_retries"), f"must not be negative, but is {role.max_retries}; 0 means no retry"
    bound = role.max_disruptions
    if bound is not None and _is_int(bound) and bound < 0:
        yield (
            (*path, "max_disruptions"),
            f"must not be negative, but is {bound}; 0 means that each disruption is a failure",
        )
    least = role.min_replicas
    if least is None or not _is_int(least):
        return
    if least < 0:
        yield (*path, "min_replicas"), f"must not be negative, but is {least}"
    elif _is_int(role.num_replicas) and least > role.num_replicas:
        yield (*path, "min_replicas"), f"must not exceed num_replicas ({role.num_replicas}), but is {least}"


def _resource_problems(resource: Any, path: tuple[Any, ...]) -> Iterator[Problem]:
    if not isinstance(resource, Resource):
        return
    for name in ("cpu", "gpu", "memMB"):
        number = getattr(resource, name)
        if _is_number(number) and number < 0 and number != -1:
            yield (*path, name), f"must not be negative, but is {number}; -1 means unspecified"
    yield from _request_problems(resource, path)
    for name in ("cpu", "cpu_request"):
        number = getattr(resource, name)
        if isinstance(number, float) and not math.isfinite(number):
            yield (*path, name), f"must be a number of CPUs, but is {number}; -1 means unspecified"
    for name, count in _dict(resource.devices).items():
        yield from _text_problems((*path, "devices", name), name)
        if _is_int(count) and count < 0:
            yield (*path, "devices", name), f"must not be negative, but is {count}"


def _request_problems(resource: Resource, path: tuple[Any, ...]) -> Iterator[Problem]:
    for name in ("cpu", "memMB"):
        most, reserved = getattr(resource, name), getattr(resource, f"{name}_request")
        if not (_is_number(reserved) and _is_number(most)):
            continue
        if reserved <= 0:
            yield (*path, f"{name}_request"), f"must be positive, but is {reserved}; leave it out to reserve {name}"
        elif 0 < most < reserved:
            yield (*path, f"{name}_request"), f"must not exceed {name} ({most}), which is the limit, but is {reserved}"


def _mount_problems(mount: Any, path: tuple[Any, ...]) -> Iterator[Problem]:
    if not isinstance(mount, (BindMount, VolumeMount, DeviceMount)):
        return
    for name in ("src", "dst_path") if isinstance(mount, VolumeMount) else ("src_path", "dst_path"):
        value = getattr(mount, name)
        if value == "":
            yield (*path, name), "is empty; name a volume" if name == "src" else "is empty; give a path"
        yield from _text_problems((*path, name), value)
    if isinstance(mount, DeviceMount):
        letters = _text(mount.permissions, default="r")
        wrong = not letters or set(letters) - set("rwm") or len(set(letters)) != len(letters)
        if wrong and not _is_template(letters):
            yield (*path, "permissions"), f"{shown(letters)} must be some of r, w and m, each once"


def _name_problems(path: tuple[Any, ...], name: object, kind: str) -> Iterator[Problem]:
    text = _text(name, default="wrong")
    if not text.strip():
        yield path, f"is empty; give the {kind} a name"
    elif _CONTROL.search(text) and not _is_template(text):
        yield path, f"{shown(text)} contains a control character; remove it"
    elif kind == "role" and len(text) > MAX_ROLE_NAME and not _is_template(text):
        yield path, f"has {len(text)} characters, but at most {MAX_ROLE_NAME} are possible; shorten it"
    elif _NO_UNICODE.search(text):
        yield from _text_problems(path, text)


def _text_problems(path: tuple[Any, ...], text: object) -> Iterator[Problem]:
    if reason := _character_problem(_text(text)):
        yield path, f"{shown(text)} {reason}"


def _character_problem(text: str) -> str:
    """Return why a program cannot receive the text; empty if it can."""
    if "\0" in text:
        return "contains a NUL character, which no program can receive; remove it"
    # The search takes microseconds in a long text, and each parse of a DAG file checks its apps.
    if not text.isascii() and _NO_UNICODE.search(text):
        return "contains half of a surrogate pair, which is not a character; remove it"
    return ""


def _length_problem(text: str, name: str = "") -> str:
    """Return why the kernel cannot pass the text to a program; empty if it can."""
    # `$$` becomes `$`, and other macros are short.
    size = len((name + text).encode("utf-8", "surrogatepass"))
    if size > _MAX_BYTES:
        size = len((name + _EMPTY_VALUES.substitute(text)).encode("utf-8", "surrogatepass"))
    if size <= _MAX_BYTES:
        return ""
    what = "with its name " if name else ""
    return f"has {what}{size} bytes, but Linux passes at most {_MAX_BYTES}; put it into a file, and give its path"


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: object, default: str = "") -> str:
    return value if isinstance(value, str) else default


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
_FOR_A_SHELL = re.compile(r"\$\{?(?:LAUNCH|TORCHX)_\w+\}?|\$\([A-Za-z_]\w*\)")
"""Variables of the launcher as a shell expands them, and any variable as Kubernetes does."""

_RANK_NAMES = ("RANK", "NODE_RANK", "PET_NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")
_RANKS = re.compile(rf"(?<![\w-])(?:(?:{'|'.join(_RANK_NAMES)})=|--node[_-]rank\b)")
"""Variables that a script sets for each process of a training, and the argument of torchrun for numbered nodes."""

_SBATCH = re.compile(r"^#SBATCH[ \t]+\S+", re.MULTILINE)


def warnings_of(app: AppDef) -> list[str]:
    """Return one sentence for each part of the app that will probably not do what its author expects."""
    return [f"role {role.name!r}: {text}" for role in app.roles for text in _warnings_of(role)]


def _warnings_of(role: Role) -> Iterator[str]:
    for given, meant in near_misses(role):
        yield f"${{{given}}} is not a macro and stays as it is, for the shell; did you mean ${{{meant}}}?"
    if found := next(filter(None, map(_SBATCH.search, role.args)), None):
        yield f"{found[0].strip()!r} in its script is not read; the options of sbatch belong into cfg"
    # Values of variables never pass a shell before the program sees them.
    texts = {f"env {name}": value for name, value in role.env.items()}
    # The ENTRYPOINT of an image may be a shell.
    if role.entrypoint is not None and posixpath.basename(role.entrypoint) not in _SHELLS:
        texts |= {f"args[{at}]": arg for at, arg in enumerate(role.args)}
    for where, text in texts.items():
        if found := _FOR_A_SHELL.search(text):
            yield (
                f"{where}: no shell expands {found[0]}, so the program gets this text; use a macro, such as "
                f"macros.rank0_host or macros.port(role, name), or let a shell run the program"
            )
    is_alone = role.num_replicas == 1 or not role.max_retries
    if not is_alone and RetryPolicy(role.retry_policy) is RetryPolicy.REPLICA and (reason := _fixes_ranks(role)):
        yield (
            f"retry_policy REPLICA restarts one process of a training, but the ranks of the others are fixed "
            f"({reason}): they fail as well, and each failure uses up a retry; use APPLICATION"
        )


def _fixes_ranks(role: Role) -> str:
    """Return what gives the replicas their ranks in a training with PyTorch; empty if nothing fixes ranks."""
    if role.torch_env:
        return "torch_env"
    if known := next((name for name in _RANK_NAMES if name in role.env), None):
        return f"env {known}"
    found_at = ((at, _RANKS.search(arg)) for at, arg in enumerate(role.args))
    return next((f"{found[0].strip()!r} in args[{at}]" for at, found in found_at if found), "")
