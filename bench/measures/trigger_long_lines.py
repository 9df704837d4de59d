"""One app that writes lines of 16 MB all the time, and a quiet one, in one triggerer process with its usual budget."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rows import row
from triggerer import Records, quantile, triggerer

from airflow_provider_launch.schedulers.local.scheduler import create_scheduler
from airflow_provider_launch.specs import AppDef, Role

SECONDS = 30.0
WARM_S = 5.0
LINE_BYTES = 16 * 1024 * 1024
MARK = "[quiet/0] at "
FOLLOW = "airflow_provider_launch.triggers.launch.AppStatusTrigger"
# One line a second is more than the triggerer's budget, which is 256 KB/s, and does not fill the disk.
LOUD = f"""
import sys, time
while True:
    sys.stdout.write("x" * {LINE_BYTES} + chr(10))
    sys.stdout.flush()
    time.sleep(1)
"""
QUIET = """
import time
while True:
    print("at", time.time(), flush=True)
    time.sleep(0.37)
"""


class Delays(Records):
    """Records the age of each line of the quiet app when the supervisor receives it."""

    def __init__(self) -> None:
        super().__init__("")
        self.found: list[tuple[float, float]] = []
        self.loud_bytes = 0

    def log(self, level: int, event: str, **values: Any) -> None:
        text = str(event)
        if text.startswith(MARK):
            self.found.append((time.monotonic(), time.time() - float(text.removeprefix(MARK))))
        elif text.startswith("[loud/0"):
            self.loud_bytes += len(text)
        super().log(level, event, **values)


root = Path(os.environ["BENCH_HOME"], "apps")
os.environ["AIRFLOW_CONN_BENCH_LONG"] = json.dumps({"conn_type": "launch_local", "extra": {"root": str(root)}})
scheduler = create_scheduler("bench", root=str(root))
ids = []
for name, program in (("loud", LOUD), ("quiet", QUIET)):
    app = AppDef(name, [Role(name, "", entrypoint=sys.executable, args=["-c", program])])
    ids.append(scheduler.schedule(scheduler.submit_dryrun(app, {})))
try:
    with triggerer() as process:
        process.records = delays = Delays()
        for app_id in ids:
            process.add(FOLLOW, {"handle": f"local://bench_long/{app_id}", "scheduled": True})
        process.run_until(lambda: delays.found and delays.loud_bytes)
        process.run_for(WARM_S)
        before = delays.loud_bytes
        seen = process.ask("triggerer.Probe", seconds=SECONDS)
        process.run_for(1.0)
        early = [event for event in process.fired.values() if "why" in event]
        assert not early, early[0]
finally:
    for app_id in ids:
        scheduler.cancel(app_id)
    for app_id in ids:
        scheduler.delete(app_id)
    scheduler.close()

late = [delay for came, delay in delays.found if seen["start"] <= came <= seen["end"]]
count = f"{len(late)} lines; {(delays.loud_bytes - before) / SECONDS / 1024:.0f} KB/s of the long lines meanwhile"
row("a quiet app's line until the log has it, the slowest", max(late), "s", limit=1, note=count)
row("lag of the loop, p99", 1000 * quantile(seen["lags"], 0.99), "ms", limit=50)
