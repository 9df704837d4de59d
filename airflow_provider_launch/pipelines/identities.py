"""Which code a task ran: commit, image, app, DAG and provider. Never fails a launch."""

from __future__ import annotations

import hashlib
import json
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
_known: dict[str, tuple[float, CodeIdentity | None]] = {}


@dataclass(frozen=True)
class CodeIdentity:
    """One thing that decides what a task does."""

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
    """Return the commit of a folder; None if it is in no checkout, or git does not answer.

    Dependable without changes to tracked files, and without new ones. Asked at most twice a minute.
    """
    key, now = str(folder), time.monotonic()
    if key in _known and now - _known[key][0] < _FRESH_S:
        return _known[key][1]
    try:
        found = _asked(folder)
    except (OSError, subprocess.SubprocessError):
        found = None
    _known[key] = (now, found)
    return found


def _asked(folder: Path) -> CodeIdentity | None:
    commit = _git(folder, "rev-parse", "HEAD").strip()
    if not commit:
        return None
    # Staged, changed and new ones.
    status = _git(folder, "status", "--porcelain=v1", "-z", "--untracked-files=all")
    # Two letters, a blank, and the path; the old path of a renamed file follows on its own.
    changed = [entry[3:] for entry in status.split("\0") if entry[2:3] == " " and entry[3:]]
    shown = ", ".join(sorted(changed)[:_MAX_FILES]) + (" and others" if len(changed) > _MAX_FILES else "")
    remote = _git(folder, "remote", "get-url", "origin").strip()
    return CodeIdentity(
        "git", commit, not changed, _without_credentials(remote), f"changed: {shown}" if changed else ""
    )


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    return ran.stdout if ran.returncode == 0 else ""


def _without_credentials(url: str) -> str:
    return re.sub(r"^([a-z+]+://)[^/@]*@", r"\1", url)


def app_identity(app: AppDef) -> CodeIdentity:
    """Return the hash of an app: without its name, its metadata, and what names the run."""
    plain = app_to_dict(app)
    plain.pop("name"), plain.pop("metadata")
    for role in plain["roles"]:
        role["env"] = {name: text for name, text in role["env"].items() if not name.startswith("LAUNCH_")}
    text = json.dumps(plain, sort_keys=True)
    return CodeIdentity("app", f"sha256:{hashlib.sha256(text.encode()).hexdigest()}", dependable=True)


def image_identities(app: AppDef) -> list[CodeIdentity]:
    """Return the image of each role; only a digest names exactly one."""
    return [
        CodeIdentity("image", role.image, dependable=_is_digest(role.image), message=f"role {role.name}")
        for role in app.roles
        if role.image and not role.image.startswith(("/", "~"))
    ]


def with_digests(code: Sequence[Mapping[str, Any]], statuses: Sequence[RoleStatus]) -> list[dict[str, Any]]:
    """Return the identities with what the image of each role was in the run, where its scheduler reports that."""
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
