"""A task whose app has failed hands on the result that the app wrote before."""

from __future__ import annotations

import pytest

from tests.airflow.support import FakeExecutionApi, launch, run_to_end, sh

RESULT = "echo '{\"epoch\": 3}' > $LAUNCH_RESULT_PATH; sleep 0.5; exit 3"


@pytest.mark.parametrize("deferrable", [False, True], ids=["worker", "triggerer"])
def test_the_result_of_a_failed_app_is_in_xcom_app(deferrable):
    """A task after the failure decides by the last metrics, or continues from the last checkpoint."""
    api = FakeExecutionApi()

    ran, _ = run_to_end(launch(sh(RESULT), deferrable=deferrable, defer_after_s=0), api)

    assert ran.state == "failed"
    assert api.xcoms["t", "app"]["result"] == {"epoch": 3}
    assert ("t", "return_value") not in api.xcoms


def test_a_broken_result_of_a_failed_app_is_a_warning():
    """The failure of the app is the error of the task, not its result."""
    api = FakeExecutionApi()

    ran, _ = run_to_end(launch(sh("echo nope > $LAUNCH_RESULT_PATH; exit 3")), api)

    assert "exited with code 3" in str(ran.error)
    assert "result" not in api.xcoms["t", "app"]
    assert any("the app has failed, and its result cannot be read" in line for line in ran.lines)


def test_a_failed_app_without_a_result_has_none():
    """Later tasks see by the missing key that there is none."""
    api = FakeExecutionApi()

    run_to_end(launch(sh("exit 3")), api)

    assert "result" not in api.xcoms["t", "app"]
