"""Features of the base class, also for plug-ins that have only the older methods."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.api import (
    DescribeAppResponse,
    Scheduler,
    filter_regex,
    spec_hash,
    split_lines,
    split_lines_iterator,
)
from airflow_provider_launch.specs import (
    AppDef,
    AppDryRunInfo,
    AppState,
    Role,
    UnknownAppException,
    UnsupportedError,
    runopts,
)
from airflow_provider_launch.specs.errors import (
    AppUnavailableError,
    InvalidRunConfigException,
    SchedulerRejectedError,
    SchedulerUnavailableError,
)
from tests.support.fake_scheduler import FakeScheduler, an_app


class OldPlugin(Scheduler):
    """A plug-in from before ids, cursors and `describe_many`."""

    def __init__(self) -> None:
        super().__init__("old", "session")
        self.state = AppState.RUNNING
        self.text = ["one\n", "two\n", "thr"]

    def _run_opts(self):
        opts = runopts()
        opts.add("queue", type_=str, help="where", default="q")
        return opts

    def _submit_dryrun(self, app, cfg):
        return AppDryRunInfo((app.name, dict(cfg)), repr)

    def schedule(self, dryrun_info):
        return "chosen-by-plugin"

    def describe(self, app_id):
        return DescribeAppResponse(app_id, self.state) if app_id == "a" else None

    def list(self):
        return []

    def _cancel_existing(self, app_id):
        self.state = AppState.CANCELLED

    def log_iter(self, app_id, role_name, k=0, regex=None, since=None, until=None, should_tail=False, streams=None):
        return iter(self.text)


@pytest.mark.parametrize("wanted", [float("nan"), float("inf"), 0.0, -1.0, 101.0])
def test_no_time_limit_of_a_launch_avoids_the_maximum(wanted: float) -> None:
    """The options of a plug-in may have no checks of their own."""

    class Plugin(OldPlugin):
        max_time_limit_s = 100.0

        def _run_opts(self):
            opts = runopts()
            opts.add("time_limit_s", type_=float, help="the limit")
            return opts

    app = AppDef("app", [Role("r", "")])
    assert Plugin().submit_dryrun(app, {"time_limit_s": 50.0}).request[1] == {"time_limit_s": 50.0}
    assert Plugin().submit_dryrun(app, {}).request[1] == {"time_limit_s": 100.0}
    with pytest.raises(InvalidRunConfigException, match=r"(is above|not a limit of up to) 100, the max_time_limit_s"):
        Plugin().submit_dryrun(app, {"time_limit_s": wanted})


def test_a_plugin_with_only_the_older_methods_works() -> None:
    plugin = OldPlugin()
    app = AppDef("app", [Role("r", "")])
    info = plugin.submit_dryrun(app, {}, app_id="ignored")

    assert info.request == ("app", {"queue": "q"})
    assert (info.app, dict(info.cfg)) == (app, {"queue": "q"})
    assert plugin.schedule(info) == "chosen-by-plugin"
    assert plugin.describe_many(["a", "b"])["b"] is None
    assert plugin.describe_many(["a", "b"])["a"].state is AppState.RUNNING
    assert plugin.capabilities == frozenset()
    plugin.cancel("unknown")
    assert plugin.state is AppState.RUNNING
    plugin.delete("a")
    assert plugin.state is AppState.CANCELLED
    plugin.close()


def test_a_plugin_with_only_log_iter_gets_a_line_count_as_cursor() -> None:
    plugin = OldPlugin()
    first = plugin.read_logs("a", "r", 0)
    plugin.text = ["one\n", "two\n", "three\n", "fo"]
    second = plugin.read_logs("a", "r", 0, first.cursor)
    plugin.state = AppState.SUCCEEDED
    third = plugin.read_logs("a", "r", 0, second.cursor)
    fourth = plugin.read_logs("a", "r", 0, third.cursor)

    assert [[line.text for line in chunk.lines] for chunk in (first, second, third, fourth)] == [
        ["one\n", "two\n"], ["three\n"], ["fo"], [],
    ]  # fmt: skip
    with pytest.raises(UnknownAppException):
        plugin.read_logs("unknown", "r", 0)


def test_a_role_without_resource_is_refused_where_something_is_allocated() -> None:
    with pytest.raises(UnsupportedError, match="role 'r' has no resource"):
        OldPlugin()._validate(AppDef("app", [Role("r", "")]), "old", {})


def test_spec_hash_covers_what_the_user_gave() -> None:
    def app(**env: str) -> AppDef:
        return AppDef("app", [Role("r", "", args=["x"], env=env)])

    assert spec_hash(app(A="1"), {"q": 1}) == spec_hash(app(A="1", TORCHX_JOB_ID="x://y/z"), {"q": 1})
    assert spec_hash(app(A="1"), {"q": 1}) != spec_hash(app(A="2"), {"q": 1})
    assert spec_hash(app(A="1"), {"q": 1}) != spec_hash(app(A="1"), {"q": 2})


def test_line_utilities() -> None:
    assert split_lines("") == []
    assert split_lines("foo\nbar") == ["foo\n", "bar"]
    assert split_lines("a\rb\n\n") == ["a\rb\n", "\n"]
    assert list(split_lines_iterator(["foo\nbar", "foobar"])) == ["foo\n", "bar", "foobar"]
    assert list(filter_regex("^f", ["foo", "bar"])) == ["foo"]


# ---- sweeps ----------------------------------------------------------------------------------------------------------

ERRORS = [AppUnavailableError("damaged"), SchedulerRejectedError("denied"), TypeError("a time in words")]


@pytest.fixture
def ended() -> FakeScheduler:
    """Five apps that have ended."""
    scheduler = FakeScheduler("s")
    for number in range(5):
        scheduler.schedule(scheduler.submit_dryrun(an_app(), {}, app_id=f"app-{number}"))
        scheduler.engine.state(f"app-{number}", AppState.CANCELLED)
    return scheduler


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["describe", "delete"])
def test_an_app_that_cannot_be_read_or_deleted_keeps_no_other_from_a_sweep(ended, monkeypatch, place, error) -> None:
    def refuse(ids: list[str]) -> None:
        if "app-3" in ids:
            raise error

    delete = ended._delete_existing
    if place == "describe":
        ended.engine.on_describe = refuse
    else:
        monkeypatch.setattr(ended, "_delete_existing", lambda app_id: refuse([app_id]) or delete(app_id))

    assert sorted(ended.sweep(0)) == ["app-0", "app-1", "app-2", "app-4"]
    assert [*ended.engine.apps] == ["app-3"]


def test_a_sweep_asks_once_more_without_the_apps_that_an_error_names(ended, caplog) -> None:
    def refuse(ids: list[str]) -> None:
        if "app-3" in ids:
            raise AppUnavailableError("app-3 is damaged", texts={"app-3": "its record is damaged"})

    ended.engine.on_describe = refuse

    assert sorted(ended.sweep(0)) == ["app-0", "app-1", "app-2", "app-4"]
    assert [len(ids) for ids in ended.engine.describe_calls if len(ids) > 1] == [5, 4]
    assert "app-3, because it cannot be read: its record is damaged" in caplog.text


def test_a_sweep_that_may_delete_no_app_is_an_error(ended, monkeypatch) -> None:
    def refuse(_app_id: str) -> None:
        raise SchedulerRejectedError("denied")

    monkeypatch.setattr(ended, "_delete_existing", refuse)
    with pytest.raises(SchedulerRejectedError, match="denied"):
        ended.sweep(0)


def test_a_sweep_ends_at_an_outage(ended) -> None:
    ended.engine.cut()
    with pytest.raises(SchedulerUnavailableError):
        ended.sweep(0)
    assert len(ended.engine.describe_calls) == 1


@pytest.mark.parametrize("error", [SchedulerUnavailableError("down"), AppUnavailableError("damaged")])
def test_only_an_outage_ends_a_sweep_that_has_deleted_apps(ended, monkeypatch, caplog, error) -> None:
    delete, deleted = ended._delete_existing, []

    def fail_later(app_id: str) -> None:
        deleted.append(app_id)
        if len(deleted) == 3:
            raise error
        delete(app_id)

    monkeypatch.setattr(ended, "_delete_existing", fail_later)
    if isinstance(error, AppUnavailableError):
        assert len(ended.sweep(0)) == 4
        assert f"sweep skips app {deleted[2]}, because it cannot be deleted now: damaged" in caplog.text
    else:
        with pytest.raises(SchedulerUnavailableError, match="down"):
            ended.sweep(0)
        assert len(deleted) == 3


def test_a_log_whose_stream_cannot_be_opened_is_read_in_parts(monkeypatch) -> None:
    plugin = OldPlugin()

    def refuse(*_: object, **__: object) -> None:
        raise SchedulerUnavailableError("no stream now")

    monkeypatch.setattr(plugin, "stream_log", refuse)
    assert [*plugin._streamed("a", "r", 0, None, None)] == []
