"""The error of a task names the replica that failed first, on each engine and in both modes."""

from __future__ import annotations

import pytest

from airflow_provider_launch.specs.errors import AppFailedError
from tests.airflow.guarantees import Place, in_modes, launch, on_places
from tests.airflow.support import FakeExecutionApi, run_to_end

SCRIPT = (
    'wrote() { echo "{\\"message\\": {\\"message\\": \\"$1\\", \\"extraInfo\\": '
    '{\\"timestamp\\": \\"$2\\"}}}" > $TORCHELASTIC_ERROR_FILE; }; '
    'if [ "$LAUNCH_REPLICA_ID" = 1 ]; then wrote "ValueError: loss is strange" 100; '
    'i=0; while test $i -lt 15; do i=$((i + 1)); echo "wandb: line $i"; done; '
    "trap 'exit 1' TERM; i=0; while test $i -lt 1200; do sleep 0.1; i=$((i + 1)); done; exit 1; fi; "
    'sleep 3; wrote "Connection closed by peer" 101; exit 1'
)
"""Replica 1 fails, and uploads a report before it exits; replica 0 loses its connection, and exits at once."""


@pytest.mark.timeout(300)
@on_places
@in_modes
def test_the_error_shows_what_the_first_replica_wrote(place: Place, deferrable: bool) -> None:
    """Its own last lines do not have the reason, nor does the replica that exits first."""
    api = FakeExecutionApi()
    task = launch(
        place,
        place.role(SCRIPT, num_replicas=2),
        deferrable=deferrable,
        defer_after_s=0.5,
        poll_interval_s=0.2,
        time_limit_s=200,
    )
    ran, _ = run_to_end(task, api)

    assert isinstance(ran.error, AppFailedError), ran.error
    text = str(ran.error)
    assert "\nmain/1 wrote to its error file:\n  ValueError: loss is strange\nlast lines of main/1:" in text
    assert "after it: main/0 exited with code 1 (a consequence: it lost its peers)" in text
    assert api.xcoms[place.mark, "app"]["error"] == "main/1: ValueError: loss is strange"
