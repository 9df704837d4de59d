import json

import pytest

from airflow_provider_launch.specs import AppState, ReplicaState, is_started, is_terminal

NAMES = ["UNSUBMITTED", "SUBMITTED", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN"]


@pytest.mark.parametrize(("value", "name"), list(enumerate(NAMES)))
def test_a_state_has_the_number_name_and_bit_of_torchx(value, name):
    state = AppState[name]

    assert state == value
    assert str(state) == f"{state}" == name
    assert repr(state) == f"{name} ({value})"
    assert json.dumps({"state": state}) == f'{{"state": {value}}}'
    assert state.mask == 1 << value
    assert AppState(value) is state


def test_the_masks_of_all_states_make_the_filter_that_takes_all():
    assert sum(state.mask for state in AppState) == 0xFF


def test_a_replica_has_the_states_of_an_app():
    assert ReplicaState is AppState


def test_only_three_states_are_final():
    assert [state.name for state in AppState if is_terminal(state)] == ["SUCCEEDED", "FAILED", "CANCELLED"]


def test_started_is_running_or_final():
    assert [s.name for s in AppState if is_started(s)] == ["RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"]
