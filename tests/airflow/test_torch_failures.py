"""The error of a task whose training failed, with real torchrun: the cause is shown, whatever is written after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_launch.operators.launch import LaunchAppOperator
from tests.airflow.support import FakeExecutionApi, a_dag, run_task

pytestmark = [pytest.mark.timeout(600), pytest.mark.engine("torch"), pytest.mark.engine("local")]

PROGRAM = """
import atexit, os, subprocess, sys, time

def main():
    if os.environ["RANK"] == "1":
        raise ValueError("loss is strange in rank 1")
    time.sleep(300)

def say(who):
    for n in range(15):
        print(f"wandb: {who} {n}", file=sys.stderr, flush=True)

if "exit" in sys.argv:
    atexit.register(say, "exit")
if "child" in sys.argv:
    # As the service of wandb: it uploads the last data when the training has died.
    watch = "import os, sys, time\\nwhile os.getppid() == int(sys.argv[1]): time.sleep(0.05)\\n" + (
        "for n in range(15): print(f'wandb: child {n}', file=sys.stderr, flush=True)"
    )
    subprocess.Popen([sys.executable, "-c", watch, str(os.getpid())])
if "record" in sys.argv:
    from torch.distributed.elastic.multiprocessing.errors import record
    main = record(main)
main()
"""


@pytest.mark.parametrize("how", [[], ["exit"], ["child"], ["record", "exit"]], ids=["plain", "exit", "child", "record"])
def test_the_error_of_a_rank_comes_first(how: list[str], tmp_path: Path) -> None:
    """The last lines of torchrun are a table without the reason, and those of other libraries do not have it either."""
    (tmp_path / "train.py").write_text(PROGRAM)
    with a_dag():
        arguments = {"script": "train.py", "script_args": how, "j": "1x2"}
        task = LaunchAppOperator(
            task_id="t", component="dist.ddp", component_args=arguments, workspace=str(tmp_path), time_limit_s=500
        )
    api = FakeExecutionApi()

    ran = run_task(task, api)

    text = str(ran.error)
    cause = text.index("ValueError: loss is strange in rank 1")
    assert "in main" in text[:cause] or "record" in how
    assert text.count("\n", 0, cause) < 20
    assert api.xcoms["t", "app"]["error"] == "train/0: ValueError: loss is strange in rank 1"
