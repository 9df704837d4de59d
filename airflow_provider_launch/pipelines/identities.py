"""Identifies the code of a task by commit, image, app, DAG and provider; never fails a launch."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_provider_launch import __version__
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.statuses import RoleStatus

_TIMEOUT_S = 2.0
_FRESH_S = 30.0
_MAX_FILES = 20
_cached: dict[str, tuple[float, CodeIdentity | None]] = {}


@dataclass(frozen=True)
class CodeIdentity:
    """The identity of one part of the code."""

    type: str
    """`git`, `image`, `app`, `dag` or `provider`."""
    identifier: str
    dependable: bool
    """True if the identifier names exactly what ran."""
    url: str = ""
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


def git_identity(folder: Path) -> CodeIdentity | None:
    """Return the commit of a folder; None if it is not in a checkout, or git fails.

    Dependable if there are no changed and no untracked files. Cached for 30 seconds.
    """
    key, now = str(folder), time.monotonic()
    if key in _cached and now - _cached[key][0] < _FRESH_S:
        return _cached[key][1]
    try:
        found = _read_commit(folder)
    except (OSError, subprocess.SubprocessError):
        found = None
    _cached[key] = (now, found)
    return found


def _read_commit(folder: Path) -> CodeIdentity | None:
    # Most folders of DAGs on workers are not checkouts, and a process of git costs as much as several requests.
    if not {"GIT_DIR", "GIT_WORK_TREE"} & {*os.environ} and not any(
        (one / ".git").exists() for one in (folder, *folder.resolve().parents)
    ):
        return None
    commit = _git(folder, "rev-parse", "HEAD").strip()
    if not commit:
        return None
    # Staged, changed and untracked files.
    status = _git(folder, "status", "--porcelain=v1", "-z", "--untracked-files=all")
    # Two letters, a blank, and the path; the old path of a renamed file is a separate entry.
    changed = [entry[3:] for entry in status.split("\0") if entry[2:3] == " " and entry[3:]]
    shown = ", ".join(sorted(changed)[:_MAX_FILES]) + (" and others" if len(changed) > _MAX_FILES else "")
    remote = _git(folder, "remote", "get-url", "origin").strip()
    return CodeIdentity(
        "git", commit, not changed, _without_credentials(remote), f"changed: {shown}" if changed else ""
    )


def _git(folder: Path, *arguments: str) -> str:
    # Without monitors and hooks of the repository. Its filters run, because the files of git-lfs need them.
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    command = ["git", "--no-optional-locks", *safe, "-C", str(folder), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return ran.stdout if ran.returncode == 0 else ""


def _without_credentials(url: str) -> str:
    return re.sub(r"^([a-z+]+://)[^/@]*@", r"\1", url)


def app_identity(app: AppDef) -> CodeIdentity:
    """Return the hash of an app without its name, its metadata and the variables of the run."""
    plain = app_to_dict(app)
    plain.pop("name"), plain.pop("metadata")
    for role in plain["roles"]:
        role["env"] = {name: text for name, text in role["env"].items() if not name.startswith("LAUNCH_")}
    text = json.dumps(plain, sort_keys=True)
    return CodeIdentity("app", f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", dependable=True)


def image_identities(app: AppDef) -> list[CodeIdentity]:
    """Return the image of each role; only a digest is dependable."""
    return [
        CodeIdentity("image", role.image, dependable=_is_digest(role.image), message=f"role {role.name}")
        for role in app.roles
        if role.image and not role.image.startswith(("/", "~"))
    ]


def with_digests(code: Sequence[Mapping[str, Any]], statuses: Sequence[RoleStatus]) -> list[dict[str, Any]]:
    """Return the identities with the image digest of each role, if the scheduler reports it."""
    found: dict[str, list[str]] = {}
    for status in statuses:
        ids = dict.fromkeys(replica.image_id for replica in status.replicas if replica.image_id)
        found[f"role {status.role}"] = list(ids)
    exact: list[dict[str, Any]] = []
    for one in code:
        digests = found.get(one["message"], []) if one["type"] == "image" else []
        exact += [
            CodeIdentity(
                "image", digest, dependable=_is_digest(digest), message=f"{one['message']}, {one['identifier']}"
            ).to_json()
            for digest in digests
        ] or [dict(one)]
    return exact


def _is_digest(image: str) -> bool:
    return "@sha256:" in image or image.startswith("sha256:")


def dag_identity(ti: Any) -> CodeIdentity | None:
    """Return the version of the DAG, and that of its bundle."""
    bundle = getattr(ti, "bundle_instance", None)
    name, version = getattr(bundle, "name", ""), getattr(bundle, "version", None)
    dag_version = getattr(ti, "dag_version_id", None)
    if not (name or version or dag_version):
        return None
    return CodeIdentity(
        "dag", str(version or dag_version or name), version is not None, message=f"bundle {name}" if name else ""
    )


def provider_identity() -> CodeIdentity:
    """Return the version of this package."""
    return CodeIdentity("provider", __version__, dependable=True)
