"""Builds the files of an app that its batch script reads: the plan, and one file per role. Pure."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import tarfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.schedulers.environment import RANK0_ENV, port_values, replica_env
from airflow_provider_launch.schedulers.slurm.request import CHECK_S, SlurmRequest, SlurmRole
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.util.untrusted import UntrustedError, parse_json, refuse_parts

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.workspace.files import WorkspaceFiles

APP_BYTES = 8 * 1024 * 1024
"""Maximum bytes of `app.json`: a hundred times the need of a large app."""
APP_PARTS = 200_000
"""Maximum items of its lists and objects, because it is parsed while other apps wait."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REPLICA = "\0k"
"""Placeholder for the number of the replica, as `APP_DIR` is for the directory; replaced when a text is quoted."""
_VARIABLES = {"k": "launch_k", "d": "launch_dir"}


def _variable(name: str) -> str:
    """Return the placeholder for a variable that `run/<attempt>/env` sets: a host or a port."""
    return f"\0v{name};"


_STEP_COMMAND = """bash -c '[ -O . ] && [ -O replica.sh ] && [ -O plan ] && exec bash ./replica.sh "$1"' bash"""
"""Runs only files of this user, because the path of the app may lead to other files on this node."""
_STEP = "--input=none --output=none --kill-on-bad-exit=1 --export=ALL"


def app_files(request: SlurmRequest, instance: str) -> dict[str, str]:
    """Return name to content of all files of a new app; `instance` distinguishes a later app with the same id.

    Refuses a record that could not be read again, because it is too large or not JSON.
    """
    roles = {
        f"role-{number}.sh": _role_file(role, request.app_id, request.app_def)
        for number, role in enumerate(request.roles)
    }
    document: dict[str, Any] = {"request": request.to_json(), "instance": instance}
    record = json.dumps(document, separators=(",", ":"))
    try:
        refuse_parts(record, APP_PARTS)
        parse_json(record, APP_BYTES)
    except UntrustedError as error:
        raise InvalidAppError(
            f"the app cannot be recorded: {error}; make its arguments and metadata smaller"
        ) from error
    return {
        "app.json": record,
        "id": f"{request.spec_hash}:{instance}",
        "plan": _plan(request),
        **roles,
        **_scripts(),
    }


def packed(contents: Mapping[str, str], workspaces: Mapping[str, WorkspaceFiles]) -> bytes:
    """Return the files as a tar that only the user can read, because they contain secrets."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, files_ in workspaces.items():
            root = tarfile.TarInfo(name)
            root.type, root.mode = tarfile.DIRTYPE, 0o700
            tar.addfile(root)
            try:
                files_.add_to(tar, f"{name}/")
            except OSError as error:
                raise InvalidAppError(
                    f"{files_} cannot be copied: {error.strerror} ({error.filename}); correct its permissions, or "
                    f"leave the file out by .launchignore"
                ) from error
        for name, text in contents.items():
            data = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


@cache
def _scripts() -> dict[str, str]:
    folder = files(__package__) / "scripts"
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("launch.sh", "replica.sh")}


def _plan(request: SlurmRequest) -> str:
    values = {
        "grace_ms": str(round(request.grace_s * 1000)),
        "check_s": str(CHECK_S),
        "limit_s": "" if request.time_limit_s is None else str(math.ceil(request.time_limit_s)),
        "warn_s": "" if request.signal_s is None else str(math.ceil(request.signal_s)),
        "signal": request.signal,
        "requeue": str(int(request.requeue)),
        "max_disruptions": "" if request.max_disruptions is None else str(request.max_disruptions),
        "login": "--login" if request.login_shell else "",
        "order": " ".join(map(str, request.order)),
        "ports": " ".join(f"{name}={port}" for name, port in request.ports.items()),
        "services": " ".join(str(at) for at, role in enumerate(request.app_def.roles) if role.service),
        "policies": " ".join(
            f"{at}:{role.num_replicas}:{role.policy}:{role.max_retries}" for at, role in enumerate(request.roles)
        ),
    }
    for at, role in enumerate(request.roles):
        values[f"folder_{at}"] = role.slug
        values[f"count_{at}"] = str(role.num_replicas)
        values[f"policy_{at}"] = role.policy
        values[f"retries_{at}"] = str(role.max_retries)
    lines = [f"launch_{name}={shlex.quote(value)}" for name, value in values.items()]
    steps = " : ".join(f'{_STEP} {" ".join(map(_quoted, step))} {_STEP_COMMAND} "$1"' for step in request.steps)
    return "\n".join([*lines, f"launch_step() {{ exec srun {steps}; }}", ""])


def _role_file(role: SlurmRole, app_id: str, app: AppDef) -> str:
    values = macros.Values(
        img_root=role.img_root,
        app_id=app_id,
        replica_id=_REPLICA,
        rank0_env=RANK0_ENV,
        rank0_host=_variable(RANK0_ENV),
        ports=port_values(app.roles, lambda variable, _: _variable(variable)),
    )
    known = replica_env(app_id, role, 0, "")
    known["LAUNCH_REPLICA_ID"] = _REPLICA
    del known[RANK0_ENV]  # set when an attempt starts
    env = {**role.copied_env, **known, **{name: values.substitute(text) for name, text in role.env.items()}}
    words = [*role.prefix, role.program, *(values.substitute(arg) for arg in role.args)]
    # Variables copied by a pattern may have names that a shell does not accept; the role's own were checked.
    exports = [f"export {name}={_quoted(value)}" for name, value in env.items() if _NAME.fullmatch(name)]
    return "\n".join([*exports, *role.prologue, f"set -- {' '.join(map(_quoted, words))}", ""])


def _quoted(text: str) -> str:
    """Return the text quoted as one word of bash, with variables in place of the placeholders."""
    parts = re.split("\0([kd]|v\\w+;)", text)
    return "".join(_expansion(part) if at % 2 else shlex.quote(part) for at, part in enumerate(parts))


def _expansion(placeholder: str) -> str:
    return f'"${_VARIABLES.get(placeholder) or placeholder[1:-1]}"'
