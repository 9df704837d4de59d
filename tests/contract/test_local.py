"""The contract of the local scheduler, on real processes."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.testing import Engine, SchedulerContract
from tests.support.local import command_lines_below
from tests.support.repeats import often


class LocalEngine(Engine):
    """Reads `/proc` and the files of shims."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def alive(self, app_id: str) -> int:
        # Supervisor and shims, which are the same program, exit shortly after they have recorded the end.
        lines = command_lines_below(self.root / "apps" / app_id).values()
        return sum(b"bare.py" not in line for line in lines)

    def starts(self, app_id: str) -> int:
        # A shim writes `pid` when its command runs.
        return len(list((self.root / "apps" / app_id / "run").rglob("pid")))

    def left(self, app_id: str) -> int:
        # Including apps that are being created or removed; the journal lists former ones.
        return sum(path.name.startswith(app_id) for path in self.root.glob("*/*"))

    @contextlib.contextmanager
    def damaged(self, app_id: str) -> Iterator[None]:
        record = self.root / "apps" / app_id / "app.json"
        text = record.read_bytes()
        record.write_text('[{"request": 1}]')
        try:
            yield
        finally:
            record.write_bytes(text)

    @contextlib.contextmanager
    def inflated(self, app_id: str) -> Iterator[None]:
        record = self.root / "apps" / app_id / "app.json"
        text = record.read_bytes()
        record.write_bytes(re.sub(rb'("num_replicas": ?)[0-9]+', rb"\g<1>1000000000", text))
        try:
            yield
        finally:
            record.write_bytes(text)

    @contextlib.contextmanager
    def forged(self, app_id: str) -> Iterator[None]:
        folder = self.root / "apps" / app_id
        folder.mkdir(mode=0o700)
        for name in ("app.json", "state.json", "lock", "cancel"):
            (folder / name).write_bytes(b"\xff\0{[\n" * 50)
        (folder / "end").symlink_to("SUCCEEDED,never,9\nx")
        try:
            yield
        finally:
            shutil.rmtree(folder)

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        # Replaced by a link to itself, because a missing root would mean that no app was launched yet.
        away = self.root.with_name("away")
        if is_there := self.root.exists():
            self.root.rename(away)
        self.root.symlink_to(self.root)
        try:
            yield
        finally:
            self.root.unlink()
            if is_there:
                away.rename(self.root)


@pytest.mark.engine("local")
class TestLocal(SchedulerContract):
    factory = "airflow_provider_launch.schedulers.local.scheduler:create_scheduler"
    many = often(50, 200)
    capabilities = frozenset(
        {
            Capability.REPLICA_RETRY,
            Capability.APPLICATION_RETRY,
            Capability.ADOPT,
            Capability.STREAMS,
            Capability.RANK0,
            Capability.PORTS,
            Capability.GPU,
            Capability.RESULT,
            Capability.WORKSPACE,
        }
    )

    @pytest.fixture
    def params(self, tmp_path: Path) -> dict[str, Any]:
        return {"root": str(tmp_path / "root")}

    @pytest.fixture
    def unreachable_params(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "file").touch()
        return {"root": str(tmp_path / "file" / "root")}

    @pytest.fixture
    def image(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def program_with_a_blank(self, tmp_path: Path) -> str:
        program = tmp_path / "a directory" / "prints its args"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n")
        program.chmod(0o755)
        return str(program)

    @pytest.fixture
    def engine(self, tmp_path: Path) -> LocalEngine:
        return LocalEngine(tmp_path / "root")
