"""Runs replicas as child processes of this process; a minimal scheduler."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torchx.schedulers.api import (
    AppDryRunInfo,
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    filter_regex,
    split_lines,
)
from torchx.schedulers.ids import make_unique
from torchx.specs.api import AppDef, AppState, CfgVal, ReplicaStatus, RoleStatus, is_terminal, macros, runopts


@dataclass
class AcmeRequest:
    """The request: role -> command and variables of each replica."""

    app_id: str
    roles: dict[str, list[tuple[list[str], dict[str, str]]]]


@dataclass
class AcmeJob:
    request: AcmeRequest
    processes: dict[str, list[subprocess.Popen[bytes]]]
    directory: Path


JOBS: dict[str, AcmeJob] = {}


class AcmeScheduler(Scheduler[Mapping[str, CfgVal]]):
    def __init__(self, session_name: str) -> None:
        super().__init__("acme", session_name)

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("lane", type_=str, required=True, help="which lane")
        opts.add("colors", type_=list[str], default=None, help="colours of the lane")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[AcmeRequest]:
        app_id = make_unique(app.name)
        roles = {}
        for role in app.roles:
            replicas = []
            for k in range(role.num_replicas):
                values = macros.Values(img_root="", app_id=app_id, replica_id=str(k), rank0_env="ACME_RANK0")
                replica = values.apply(role)
                replicas.append(([replica.entrypoint, *replica.args], {**replica.env, "LANE": str(cfg["lane"])}))
            roles[role.name] = replicas
        return AppDryRunInfo(AcmeRequest(app_id, roles), lambda request: f"acme runs {request.roles}")

    def schedule(self, dryrun_info: AppDryRunInfo[AcmeRequest]) -> str:
        request = dryrun_info.request
        directory = Path(tempfile.mkdtemp(prefix="acme-"))
        processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        for role, replicas in request.roles.items():
            processes[role] = []
            for k, (command, env) in enumerate(replicas):
                with (directory / f"{role}-{k}").open("wb") as log:
                    started = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"], **env})
                processes[role].append(started)
        JOBS[request.app_id] = AcmeJob(request, processes, directory)
        return request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = JOBS.get(app_id)
        if job is None:
            return None
        statuses = []
        states = []
        for role, processes in job.processes.items():
            replicas = []
            for k, process in enumerate(processes):
                code = process.poll()
                state = AppState.RUNNING if code is None else AppState.FAILED if code else AppState.SUCCEEDED
                states.append(state)
                replicas.append(ReplicaStatus(id=k, state=state, role=role, hostname="here"))
            statuses.append(RoleStatus(role, replicas))
        if AppState.RUNNING in states:
            state = AppState.RUNNING
        else:
            state = AppState.FAILED if AppState.FAILED in states else AppState.SUCCEEDED
        return DescribeAppResponse(app_id=app_id, state=state, roles_statuses=statuses)

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
        lines = split_lines((JOBS[app_id].directory / f"{role_name}-{k}").read_text())
        return filter_regex(regex, lines) if regex else lines

    def list(self) -> list[ListAppResponse]:
        return [ListAppResponse(app_id=app_id, state=self.describe(app_id).state) for app_id in JOBS]

    def _cancel_existing(self, app_id: str) -> None:
        response = self.describe(app_id)
        if response is not None and not is_terminal(response.state):
            for processes in JOBS[app_id].processes.values():
                for process in processes:
                    process.terminate()


def create_scheduler(session_name: str, **kwargs: Any) -> AcmeScheduler:
    return AcmeScheduler(session_name)
