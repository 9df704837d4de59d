"""A workspace of a thousand files on Docker: the first launch builds its image, the second reuses it."""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from pathlib import Path

import docker_engine
from rows import row

FILES = 1000
what = f"second launch of an unchanged workspace of {FILES} files"
docker_engine.use(what)

from airflow_provider_launch.runner import Runner  # noqa: E402 - the engine comes first
from airflow_provider_launch.specs import AppDef, Role  # noqa: E402


class Builds(logging.Handler):
    """Counts builds."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count the line that starts a build."""
        self.count += "building launch-workspace" in record.getMessage()


builds = Builds()
logging.getLogger("airflow_provider_launch.workspace").addHandler(builds)
logging.getLogger("airflow_provider_launch.workspace").setLevel(logging.INFO)
app = AppDef("ws", [Role("main", docker_engine.IMAGE, entrypoint="true")])
with tempfile.TemporaryDirectory() as folder, Runner("bench", scheduler_params={"host": docker_engine.HOST}) as runner:
    for number in range(FILES):
        path = Path(folder, f"package_{number // 50}", f"module_{number}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {time.time_ns()}\n" + "x = 1\n" * 200)
    times, handles = [], []
    for _ in range(6):
        start = time.perf_counter()
        info = runner.dryrun(app, "docker", {"pull": "never", "quiet": True}, folder)
        handles.append(runner.schedule(info))
        times.append(time.perf_counter() - start)
    for handle in handles:
        runner.wait(handle, 0.1)
        runner.delete(handle)
row(what, statistics.median(times[1:]), limit=1, note=f"worst {max(times[1:]):.2f} s, {builds.count - 1} builds")
