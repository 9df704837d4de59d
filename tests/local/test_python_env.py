"""Programs of another Python environment, which has packages that Airflow's own lacks."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from airflow_provider_launch.components.utils import python
from airflow_provider_launch.specs import Workspace
from tests.support.local import Apps, sh

pytestmark = pytest.mark.engine("local")
PROGRAM = "import sys; print(sys.prefix)"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("environment")
    venv.create(path, symlinks=True)
    return path


@pytest.mark.parametrize("code", ["image", "host", "workspace"])
def test_programs_are_those_of_the_environment(code: str, apps: Apps, environment: Path, tmp_path: Path) -> None:
    """Wherever the code comes from: `python` of the worker has no torch."""
    role = sh(f"python -c '{PROGRAM}'") if code == "host" else python(c=PROGRAM).roles[0]
    if code == "workspace":
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "python").write_text("#!/bin/sh\necho of the workspace\n")
        (tmp_path / "code" / "python").chmod(0o755)
        role.workspace = Workspace({str(tmp_path / "code"): ""})

    app_id = apps.start(role, python_env=str(environment))
    apps.end(app_id)

    assert apps.lines(app_id, role.name) == [f"{environment}\n"]
