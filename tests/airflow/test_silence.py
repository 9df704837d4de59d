"""`silence_limit_s`: an app of which no replica writes a line hangs, and is cancelled."""

from __future__ import annotations

import sys

import pytest

from airflow_provider_launch.specs import Role
from tests.airflow.support import FakeExecutionApi, launch, run_to_end, sh

pytestmark = pytest.mark.engine("local")

in_modes = pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "deferred"])


@in_modes
def test_a_silent_app_is_cancelled_and_the_error_names_its_running_replicas(deferrable) -> None:
    """A rank that waits for a lost peer would use its GPUs until the time limit, which is days."""
    script = "echo step $LAUNCH_REPLICA_ID; test $LAUNCH_REPLICA_ID = 0 || exec sleep 300"
    task = launch(
        sh(script, num_replicas=3), silence_limit_s=2, time_limit_s=200, poll_interval_s=0.2, deferrable=deferrable
    )
    api = FakeExecutionApi()
    ran, _ = run_to_end(task, api)

    cause = "hangs: no replica has written a line for 2 s (silence_limit_s); still running: worker/1, worker/2"
    assert cause in str(ran.error)
    assert ran.logged("step 2")
    assert (api.xcoms["t", "app"]["state"], api.xcoms["t", "app"]["error"]) == ("CANCELLED", cause)


@in_modes
def test_one_replica_that_writes_is_enough(deferrable) -> None:
    """Often only rank 0 writes."""
    writes = "i=0; while test $i -lt 24; do i=$((i + 1)); echo $i; sleep 0.5; done"
    script = f"test $LAUNCH_REPLICA_ID = 0 || exec sleep 12; {writes}"
    task = launch(
        sh(script, num_replicas=2),
        log_replicas=[1],  # the other's lines count all the same
        silence_limit_s=6,
        time_limit_s=200,
        poll_interval_s=0.2,
        deferrable=deferrable,
    )
    api = FakeExecutionApi()
    ran, _ = run_to_end(task, api)

    assert ran.error is None, ran.error
    assert api.xcoms["t", "return_value"]["roles"] == {"worker": [0, 0]}


def test_the_stacks_of_a_program_that_hangs_are_in_the_log() -> None:
    """As docs/pytorch.md tells it: without them the log does not show where a rank waits."""
    program = (
        "import faulthandler, signal, time\n"
        "faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)\n"
        "def all_reduce():\n    time.sleep(300)\n"
        "print('step 0', flush=True)\nall_reduce()\n"
    )
    role = Role("trainer", "", entrypoint=sys.executable, args=["-c", program], num_replicas=2)
    ran, _ = run_to_end(launch(role, silence_limit_s=3, time_limit_s=200, poll_interval_s=0.2), FakeExecutionApi())

    assert "hangs: no replica has written a line for 3 s" in str(ran.error)
    for k in range(2):
        assert [line for line in ran.lines if line.startswith(f"[trainer/{k}]") and line.endswith("in all_reduce")]
