"""Code outside of a task: a script on a host that has Airflow's configuration and its database."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
RECIPES = [text for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "for_conn" in text]
LAUNCH = """
from airflow_provider_launch.hooks.launch import LaunchHook
from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.owner import OWNER
hook = LaunchHook.for_connection("launch_local_default")
owner = {"dag_id": "etl", "run_id": "manual__2026-01-01", "task_id": "t", "map_index": -1}
app = AppDef("a", [Role("w", "", entrypoint="sleep", args=["60"])], metadata={OWNER: owner})
hook.runner.run(app, "local", app_id="of-the-script")
"""
END = """
status = hook.runner.wait("local://launch_local_default/of-the-script", 0.1, timeout=60)
print("state:", status.state.name, [app.app_handle for app in hook.runner.list("local")])
"""


SHOW_AWS = """
from airflow_provider_launch.hooks.launch import LaunchHook
credentials = LaunchHook.for_connection("by_aws").scheduler.aws.clients.batch._request_signer._credentials
print("key:", credentials.access_key)
"""


def make_database(home: Path, *rows: tuple[str, str, dict[str, Any]]) -> None:
    """Create what a script reads of Airflow's database, here and not in another process, which would import Airflow."""
    from airflow.models import Connection
    from airflow.models.team import Team

    home.mkdir()
    engine = create_engine(f"sqlite:///{home / 'airflow.db'}")
    with engine.begin() as database:
        for model in (Team, Connection):  # noqa: AIR311 - as Airflow itself makes the table
            model.__table__.create(database)
        for conn_id, conn_type, extra in rows:
            row = {"conn_id": conn_id, "conn_type": conn_type, "extra": json.dumps(extra)}
            row |= {"login": "of-aws", "password": "x"} if conn_type == "aws" else {}
            database.execute(Connection.__table__.insert(), {**row, "is_encrypted": False, "is_extra_encrypted": False})  # noqa: AIR311
    engine.dispose()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that runs a script on a host with the configuration and the database of Airflow."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS"))},
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "LAUNCH_HOME": str(tmp_path / "another"),
    }

    def run(text: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", text],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


@pytest.mark.engine("local")
def test_the_recipes_for_cleaning_up_run_as_printed_with_a_connection_of_the_database(tmp_path: Path, script) -> None:
    root = tmp_path / "root"
    make_database(tmp_path / "airflow", ("launch_local_default", "launch_local", {"root": str(root)}))
    find, sweep = RECIPES
    shown = script(LAUNCH + find + END + sweep)

    assert (root / "apps" / "of-the-script").is_dir(), "it was not launched by the connection of the database"
    assert "state: CANCELLED ['local://launch_local_default/of-the-script']" in shown
    assert "0 apps were deleted" in shown


def test_a_connection_of_the_database_finds_that_of_type_aws(tmp_path: Path, script) -> None:
    """The amazon provider would continue with the credentials of the host."""
    pytest.importorskip("airflow.providers.amazon")
    launch = ("by_aws", "launch_aws_batch", {"aws_conn_id": "of_a_team", "queue": "q"})
    make_database(tmp_path / "airflow", launch, ("of_a_team", "aws", {"region_name": "eu-west-1"}))

    assert "key: of-aws" in script(SHOW_AWS)
