"""A scheduler: one shell per replica, with its record, log and exit code in a directory."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torchx.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    StructuredOpts,
    filter_regex,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, RoleStatus, is_terminal, macros, runopts


@dataclass
class AcmeOpts(StructuredOpts):
    """Options of a launch."""

    root: str
    """The directory of all apps."""

    greeting: str | None = None
    """Text for the variable GREETING."""


class AcmeScheduler(Scheduler[Mapping[str, Any]]):
    """Starts shells; a link in the home directory leads from the id of an app to its directory."""

    def __init__(self, session_name: str) -> None:
        super().__init__("acme", session_name)

    def _run_opts(self) -> runopts:
        return AcmeOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[dict[str, Any]]:
        opts = AcmeOpts.from_cfg(cfg)
        folder = Path(opts.root) / f"{app.name}-{uuid.uuid4().hex[:8]}"
        replicas = []
        for role in app.roles:
            for k in range(role.num_replicas):
                values = macros.Values("", folder.name, str(k), rank0_env="RANK0_HOST")
                applied = values.apply(role)
                command = shlex.join([applied.entrypoint, *applied.args])
                env = {**applied.env, "GREETING": opts.greeting or ""}
                replicas.append({"role": role.name, "k": k, "command": command, "env": env})
        return AppDryRunInfo(
            {"folder": str(folder), "replicas": replicas}, lambda request: json.dumps(request, indent=2)
        )

    def schedule(self, dryrun_info: AppDryRunInfo[dict[str, Any]]) -> str:
        request = dryrun_info.request
        folder = Path(request["folder"])
        folder.mkdir(parents=True)
        for replica in request["replicas"]:
            name = f"{replica['role']}-{replica['k']}"
            script = f"{replica['command']}; c=$?; echo $c >{name}.tmp; mv {name}.tmp {name}.exit"
            with subprocess.Popen(
                ["sh", "-c", f"({script}) </dev/null >{name}.log 2>&1 &"],
                cwd=folder,
                env={**os.environ, **replica["env"]},
                start_new_session=True,
            ) as started:
                replica["group"] = started.pid
        (folder / "record.json").write_text(json.dumps(request))
        known = Path.home() / ".acme" / folder.name
        known.parent.mkdir(exist_ok=True)
        known.symlink_to(folder)
        return folder.name

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        folder = _folder(app_id)
        if folder is None:
            return None
        roles: dict[str, list[ReplicaStatus]] = {}
        for replica in json.loads((folder / "record.json").read_text())["replicas"]:
            state = _state(folder, f"{replica['role']}-{replica['k']}")
            roles.setdefault(replica["role"], []).append(ReplicaStatus(replica["k"], state, replica["role"], ""))
        states = [replica.state for replicas in roles.values() for replica in replicas]
        worst = next((s for s in (AppState.FAILED, AppState.CANCELLED, AppState.RUNNING) if s in states), states[0])
        found = [RoleStatus(role, replicas) for role, replicas in roles.items()]
        return DescribeAppResponse(app_id=app_id, state=worst, roles_statuses=found)

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        raise NotImplementedError("apps are found by their ids")

    def _cancel_existing(self, app_id: str) -> None:
        folder = _folder(app_id)
        assert folder is not None
        (folder / "cancelled").touch()
        for replica in json.loads((folder / "record.json").read_text())["replicas"]:
            try:
                os.killpg(replica["group"], signal.SIGKILL)
            except ProcessLookupError:
                continue

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        lines = self._lines(app_id, role_name, k, should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _lines(self, app_id: str, role_name: str, k: int, should_tail: bool) -> Iterable[str]:
        folder = _folder(app_id)
        assert folder is not None
        name = f"{role_name}-{k}"
        with (folder / f"{name}.log").open() as log:
            while True:
                has_ended = is_terminal(_state(folder, name))
                yield from log
                if has_ended or not should_tail:
                    return
                time.sleep(0.05)


def _folder(app_id: str) -> Path | None:
    """Return the directory of an app."""
    found = Path.home() / ".acme" / app_id
    return found if (found / "record.json").exists() else None


def _state(folder: Path, name: str) -> AppState:
    try:
        code = int((folder / f"{name}.exit").read_text())
    except FileNotFoundError:
        return AppState.CANCELLED if (folder / "cancelled").exists() else AppState.RUNNING
    return AppState.FAILED if code else AppState.SUCCEEDED


def create_scheduler(session_name: str, **kwargs: object) -> AcmeScheduler:
    """Return the scheduler; the entry point names this function."""
    return AcmeScheduler(session_name)
