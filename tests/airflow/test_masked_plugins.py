"""Secrets in the steps of pipelines that an executor of a plug-in runs: their lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.pipelines import dag_from_file
from airflow_provider_launch.pipelines.plugin import BaseExecutor
from tests.airflow import support
from tests.airflow.support import FakeExecutionApi, run_to_end

SECRET = "Xk9-admin-Qz7-author"


class OwnExecutor(BaseExecutor):
    service_name = "own"

    def trigger_job(self, node: Any, map_variable: Any = None, **_: Any) -> Any:
        return self.execute_node(node, map_variable)


@pytest.fixture
def _plug_in(tmp_path: Path, monkeypatch) -> None:
    info = tmp_path / "site" / "launch_own-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: launch-own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[airflow_provider_launch.executors]\nown = {__name__}:OwnExecutor\n")
    monkeypatch.syspath_prepend(str(info.parent))


def _ran(
    folder: Path, api: FakeExecutionApi, settings: str, secrets: str, command: str = "echo with $DB_PASSWORD"
) -> Any:
    text = f"""
executor: {{type: own, config: {{{settings}}}}}
parameters: {{other_token: x}}
dag:
  start_at: one
  steps:
    one: {{type: task, command_type: shell, command: "{command}", {secrets} next: success}}
"""
    (folder / "p.yaml").write_text(text)
    return run_to_end(dag_from_file(folder / "p.yaml", "test_dag").get_task("one"), api)[0]


@pytest.mark.usefixtures("_plug_in")
def test_a_plug_in_shows_no_start_of_a_secret_where_a_program_has_stopped(tmp_path) -> None:
    command = "echo connecting to Xk9-admin; printf 'pw=%s' $DB_PASSWORD | head -c 15"
    ran = _ran(tmp_path, FakeExecutionApi(), f"env: {{DB_PASSWORD: {SECRET}}}", "", command)

    lines = [line for line in ran.lines if "connecting" in line or "pw=" in line]
    assert [line.rpartition(" ")[2] for line in lines[-2:]] == ["Xk9-admin", "pw=***"]


@pytest.mark.usefixtures("_plug_in")
@pytest.mark.parametrize("given", ["with Xk9", "admin", "Xk9-admin", "many"])
@pytest.mark.parametrize("how", ["written", "fetched", "secrets"])
def test_a_plug_in_shows_no_rest_of_a_secret(tmp_path, monkeypatch, how: str, given: str) -> None:
    """Next to values of a run that overlap it, or that are more than can be masked."""
    monkeypatch.setenv("AIRFLOW_VAR_PLACE", SECRET)
    monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://me:{SECRET}@h/d")
    tokens = {f"p{number}_token": f"word{number}" for number in range(140)} | {"p_token": "admin"}
    monkeypatch.setitem(support.RUN, "conf", tokens if given == "many" else {"other_token": given})
    value = {"written": SECRET, "fetched": "'{{ conn.db.password }}'"}.get(how)
    api = FakeExecutionApi()
    settings = f"env: {{DB_PASSWORD: {value}}}" if value else ""
    ran = _ran(tmp_path, api, settings, "secrets: {DB_PASSWORD: place}," if how == "secrets" else "")

    assert ran.error is None
    assert "***" in "".join(ran.lines)
    assert "Xk9-" not in "".join(ran.lines)
    assert "Qz7" not in f"{ran.lines}{api.xcoms}{api.store}"
