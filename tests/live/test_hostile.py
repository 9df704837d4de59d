"""Output of a hostile app does not harm other tasks of its triggerer, or the database, which stores no NUL."""

from __future__ import annotations

import re
import time

import pytest

from airflow_provider_launch.specs.states import AppState
from tests.live.engines import apps_of
from tests.live.runs import ENDED, POLL_S, Run
from tests.live.test_endings import STARTED_WITHIN_S, begun, lines_of
from tests.support.apps import until

pytestmark = pytest.mark.alone

NUMBER = re.compile(r"\[main/0\] (\d+)")
_RESULT, _ERROR = '"$LAUNCH_RESULT_PATH"', '"$TORCHELASTIC_ERROR_FILE"'
_FIRST = "test $LAUNCH_REPLICA_ID = 0 || exit 0; sleep 5; "
# The end of a script, and how its task ends.
ACTS = {
    "NUL in the last lines": (r"printf 'a\000b\n'; exit 3", "failed"),
    "half of a surrogate pair in the last lines": (r"printf '\355\240\200 \377\n'; exit 3", "failed"),
    "NUL in the error": (rf"""printf '{{"message": "a\\u0000b \\ud800"}}' > {_ERROR}; exit 3""", "failed"),
    "reserved keys in the error": (
        rf"""printf '{{"message": {{"__classname__": "x"}}}}' > {_ERROR}; exit 3""",
        "failed",
    ),
    "a line without an end": (r"head -c 40000000 /dev/zero | tr '\000' x; exit 3", "failed"),
    "NUL in the result": (rf"""printf '["\\u0000"]' > {_RESULT}""", "failed"),
    "half of a surrogate pair in the result": (rf"""printf '["\\ud800"]' > {_RESULT}""", "failed"),
    "reserved keys in the result": (rf"""printf '{{"__classname__": "x"}}' > {_RESULT}""", "failed"),
    "a huge result": (rf"head -c 50000000 /dev/zero | tr '\000' 9 > {_RESULT}", "failed"),
    "a deep result": (rf"head -c 4000 /dev/zero | tr '\000' '[' > {_RESULT}", "failed"),
}


def last_number(run: Run) -> int:
    return max((int(found[1]) for line in lines_of(run) if (found := NUMBER.fullmatch(line))), default=-1)


def test_a_hostile_app_harms_no_other_task_of_its_triggerer(on_postgres) -> None:
    live = on_postgres
    stop = live.engines["local"].stop_file
    count = f"echo began; n=0; while test ! -e {stop}; do echo $n; n=$((n + 1)); sleep 1; done; echo $n"
    bystander, app_id = begun(live, "plain_deferrable", "local", count)
    runs = {name: live.run("plain_deferrable", "local", _FIRST + act) for name, (act, _) in ACTS.items()}

    ends: dict[str, str] = {}
    deadline = time.monotonic() + 4 * STARTED_WITHIN_S
    while len(ends) < len(runs):
        assert live.airflow.is_alive("triggerer"), live.airflow.output("triggerer")
        for name, run in runs.items():
            if name not in ends and (state := run.task()["state"]) in ENDED:
                ends[name] = state
        assert time.monotonic() < deadline, {
            name: run.task()["state"] for name, run in runs.items() if name not in ends
        }
        time.sleep(POLL_S)

    assert ends == {name: state for name, (_, state) in ACTS.items()}
    # The same triggerer shows what the other app writes, also from now on.
    seen = last_number(bystander)
    until(lambda: last_number(bystander) > seen, STARTED_WITHIN_S, POLL_S)
    assert live.airflow.is_alive("triggerer")
    assert "process has died" not in live.airflow.output("triggerer")
    live.engines["local"].tell_to_stop(app_id)
    assert bystander.end(STARTED_WITHIN_S)["state"] == "success"
    numbers = [int(found[1]) for line in lines_of(bystander) if (found := NUMBER.fullmatch(line))]
    assert numbers == [*range(len(numbers))]
    assert apps_of(live.engines["local"], bystander.run_id) == {app_id: AppState.SUCCEEDED}
