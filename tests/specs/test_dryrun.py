import pytest

from airflow_provider_launch.specs import AppDef, AppDryRunInfo


def test_the_text_is_formatted_by_the_scheduler():
    info = AppDryRunInfo({"a": 1}, lambda request: f"request {request['a']}")
    assert repr(info) == str(info) == "request 1"

    info.request["a"] = 2
    assert str(info) == "request 2"
    info.request = {"a": 3}
    assert str(info) == "request 3"


def test_back_references_are_unset_until_a_scheduler_sets_them():
    info = AppDryRunInfo(1, str)
    assert (info._app, info._cfg, info._scheduler) == (None, {}, None)
    assert (info.app, dict(info.cfg)) == (None, {})

    app = AppDef("a")
    info._app, info._cfg = app, {"x": 1}

    assert info.app is app
    assert info.cfg == {"x": 1}


def test_cfg_cannot_be_changed_through_the_view():
    info = AppDryRunInfo(1, str)
    info._cfg = {"x": 1}

    with pytest.raises(TypeError):
        info.cfg["x"] = 2
    with pytest.raises(TypeError):
        del info.cfg["x"]


def test_the_text_can_be_printed_whatever_the_request_holds():
    info = AppDryRunInfo("half a \ud800 pair", str)

    assert str(info).encode() == b"half a \\ud800 pair"
