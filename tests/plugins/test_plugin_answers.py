"""Answers of clusters with records, events and names that harm no other app. No cluster is needed."""

from __future__ import annotations

import base64
import json
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_launch.follow.poller import poll_many
from airflow_provider_launch.schedulers.queue import JobState
from airflow_provider_launch.specs import AppState
from airflow_provider_launch.specs.errors import AppUnavailableError

RUN = "a-run"


def packed(document: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()


class Cluster:
    """The client of Ray, with jobs that a test writes."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.logs: dict[str, str] = {}

    def add(self, app_id: str, request: str, log: str = "") -> None:
        env = {"LAUNCH_REQUEST": request, "LAUNCH_RUN": RUN}
        status = SimpleNamespace(value="RUNNING", is_terminal=lambda: False)
        self.logs[app_id] = log
        self.jobs.append(
            SimpleNamespace(
                submission_id=app_id,
                status=status,
                runtime_env={"env_vars": env},
                driver_agent_http_address="http://driver",
                start_time=None,
                message="",
            )
        )

    def list_jobs(self) -> list[Any]:
        return self.jobs

    def get_job_logs(self, app_id: str) -> str:
        return self.logs[app_id]


GOOD: dict[str, Any] = {"app": {"name": "app", "roles": []}, "replicas": []}
DAMAGED = {
    "no base64": ("%", ""),
    "no zlib": (base64.b64encode(b"x" * 40).decode(), ""),
    "a bomb": (base64.b64encode(zlib.compress(b" " * 100_000_000)).decode(), ""),
    "a list": (packed([]), ""),
    "no replicas": (packed({"app": GOOD["app"]}), ""),
    "replicas that are a number": (packed({**GOOD, "replicas": 5}), ""),
    "no app": (packed({"replicas": []}), ""),
    "an event that is not JSON": (packed(GOOD), f"{RUN} {{\n"),
    "an event of another replica": (packed(GOOD), f'{RUN} {{"n": 7}}\n'),
    "a state that does not exist": (packed(GOOD), f'{RUN} {{"end": "X", "msg": ""}}\n'),
}


@pytest.mark.parametrize(("request_text", "log"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_job_of_ray_hides_no_other_app(install, request_text, log) -> None:
    """Each user of the cluster can submit such a job; it stopped all followers and lists of the connection."""
    install("launch_ray")
    import launch_ray

    scheduler = launch_ray.create_scheduler("test")
    scheduler._connected = cluster = Cluster()
    cluster.add("bad", request_text, log)
    cluster.add("by", packed(GOOD))

    answers = poll_many(scheduler, ["bad", "by"])

    assert answers["by"].state is AppState.PENDING
    assert answers["bad"] is None or isinstance(answers["bad"], AppUnavailableError)
    rows = {row.app_id: row.state for row in scheduler.list()}
    assert rows["by"] is AppState.PENDING
    assert rows.get("bad", AppState.UNKNOWN) is AppState.UNKNOWN


def test_a_name_that_no_xml_has_hides_no_job_of_grid_engine(install, tmp_path, monkeypatch) -> None:
    install("launch_sge")
    import launch_sge

    name = "<job_list><JB_job_number>1</JB_job_number><JB_name>a\x01\x1b</JB_name></job_list>"
    job = "<job_list><JB_job_number>2</JB_job_number><state>r</state></job_list>"
    (tmp_path / "qstat").write_text(f"#!/bin/sh\ncat <<'END'\n<job_info>{name}{job}</job_info>\nEND\n")
    (tmp_path / "qstat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    scheduler = launch_sge.create_scheduler("test", root=str(tmp_path / "root"))

    assert scheduler.job_statuses(["2"])["2"].state is JobState.RUNNING
