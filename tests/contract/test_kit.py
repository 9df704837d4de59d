"""Proofs of the contract: every test of it fails for a scheduler with the matching defect."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppDef, Role
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.testing import SchedulerContract, _process
from airflow_provider_launch.testing._base import until
from airflow_provider_launch.testing._cursors import SEED
from airflow_provider_launch.testing._hostile import _Memory
from airflow_provider_launch.testing._process import OtherProcess, OtherProcessError
from airflow_provider_launch.testing.example_scheduler import ThreadsScheduler
from tests.contract.broken import defects, streams
from tests.support.repeats import SOAK, often

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).with_name("broken") / "suite.py"
DEFECTS = defects.load_all()


def _healthy(scheduler: type) -> str:
    bases = {defects.Local: "HealthyLocal", streams.Streaming: "HealthyStreaming"}
    return next((name for base, name in bases.items() if issubclass(scheduler, base)), "HealthyThreads")


PAIRS = [(scheduler.__name__, test) for scheduler, tests in DEFECTS.items() for test in tests]
# Proofs depend only on this folder and the contract. One proof of each kind runs by default, all run in
# `make soak` and CI.
KINDS = {scheduler.__module__: (scheduler.__name__, tests[0]) for scheduler, tests in reversed(DEFECTS.items())}
PROOFS = often([*KINDS.values()], PAIRS)
OF_UNKNOWN_APPS = (
    "test_describe_of_an_unknown_app_raises_nothing",
    "test_describe_of_an_unknown_app_is_none",
    "test_describe_many_separates_known_and_unknown_apps",
    "test_cancel_of_an_unknown_app_does_nothing",
    "test_delete_can_be_repeated_and_ignores_unknown_apps",
)
# A defect that promises more than the healthy schedulers has no healthy counterpart.
HEALTHY = sorted(
    {
        (_healthy(scheduler), test)
        for scheduler, tests in DEFECTS.items()
        for test in tests
        # Both schedulers pass the whole contract in other modules; here only the watched engine is tested. The streams
        # of the healthy one do not end with their program, so a tail of them does not end; those of engines do.
        if scheduler.promised is None and (SOAK or "log_source" in test) and "test_a_tail_" not in test
    }
)
# Leftovers of a broken scheduler must not fail the test that noticed its defect.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
UNUSED = (
    "cacheprovider",
    "terminal",
    "capture",
    "logging",
    "junitxml",
    "timeout",
    "xdist",
    "faulthandler",
    "threadexception",
)
SLIPS = (
    "TypeError",
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "KeyError",
    "IndexError",
    "JSONDecodeError",
    "StopIteration",
)
"""Errors that show a Python error in a broken scheduler; a defect shows as a wrong answer."""
# `OtherProcessError` repeats the class of what was raised in the other process.
_SLIP = re.compile(rf"(?:[\w.]+Error: )*(?:[\w.]+\.)?(?:{'|'.join(SLIPS)})\b")


class Recorder:
    """A pytest plug-in that records the order and the outcome of the tests, and errors in the threads of their apps."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []
        self.collected: list[str] = []
        """Module of the contract that has each test."""
        self.of_threads: list[str] = []

    def note_thread(self, args: threading.ExceptHookArgs) -> None:
        self.of_threads.append(f"{args.exc_type.__name__}: {args.exc_value}")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = [item.function.__module__ for item in session.items if isinstance(item, pytest.Function)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.reports.append(report)

    def texts(self) -> str:
        return "\n".join(
            f"{report.nodeid} {report.when} {report.outcome}\n{report.longrepr}" for report in self.reports
        )

    def proofs(self) -> list[pytest.TestReport]:
        """Return the failures of the test itself, without those of fixtures."""
        return [report for report in self.reports if report.when == "call" and report.failed]

    def slips(self) -> list[str]:
        """Return Python errors of the scheduler, with which a failure proves nothing about the contract."""
        raised = [_message(report) for report in self.proofs()]
        return [text for text in [*raised, *self.of_threads] if _SLIP.match(text)]


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)


def run_test(scheduler: str, test: str, tmp_path: Path, module: Path = SUITE) -> Recorder:
    """Run one test of the contract, with all its parameters or one of them, for one scheduler."""
    recorder = run_pytest(f"{module}::Test{scheduler}::{test}", tmp_path)
    assert recorder.reports, f"no test {test}"
    return recorder


def run_pytest(node: str, tmp_path: Path, *more: str) -> Recorder:
    recorder = Recorder()
    plugins = [f"-pno:{name}" for name in UNUSED]
    options = ["-Wignore", "--noconftest", "-c", "/dev/null", f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'inner'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", recorder.note_thread)
        pytest.main([*plugins, *options, *more, "--import-mode=importlib", node], plugins=[recorder])
    return recorder


@pytest.fixture(autouse=True)
def _plain_pytest(monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.mark.parametrize(("scheduler", "test"), PROOFS)
def test_defect_is_noticed(scheduler, test, tmp_path):
    found = run_test(scheduler, test, tmp_path)

    assert found.proofs(), found.texts()
    assert not found.slips(), (
        f"{scheduler} fails {test} by a Python error, {found.slips()}, which proves nothing; "
        f"fix the scheduler until the test fails for its defect\n{found.texts()}"
    )


@pytest.mark.parametrize(
    ("scheduler", "test", "slip"),
    [
        ("SlipsAtOnce", "test_one_role_runs_to_its_end", "JSONDecodeError"),
        ("SlipsInAnotherProcess", "test_another_process_sees_the_app", "KeyError"),
        ("SlipsInItsThread", "test_one_role_runs_to_its_end", "TypeError"),
    ],
)
def test_slip_is_no_proof(scheduler, test, slip, tmp_path):
    """The test fails, but would also fail without a check for the defect."""
    found = run_test(scheduler, test, tmp_path)

    assert found.proofs()
    assert [text for text in found.slips() if slip in text], found.texts()


@pytest.mark.parametrize(("scheduler", "test"), HEALTHY)
def test_scheduler_without_the_defect_passes(scheduler, test, tmp_path):
    found = run_test(scheduler, test, tmp_path)

    assert all(report.passed for report in found.reports), found.texts()


def test_a_scheduler_may_print(tmp_path):
    """Printed lines must not be read as answers of the other process."""
    found = run_test("PrintsWhatItDoes", "test_racing_processes_start_one_app", tmp_path)

    assert all(report.passed for report in found.reports), found.texts()


@pytest.mark.parametrize("test", ["test_every_replica_reaches_rank_0", "test_replicas_agree_on_ports"])
def test_rank_0_may_be_offered_without_ports(test, tmp_path):
    found = run_test("OffersRank0WithoutPorts", test, tmp_path)

    assert all(report.passed for report in found.reports), found.texts()


@pytest.mark.parametrize(
    "test", ["test_streams_are_kept_apart_and_combined", "test_many_lines_on_both_streams_at_once"]
)
def test_one_stream_may_be_kept(test, tmp_path):
    found = run_test("KeepsOneStream", test, tmp_path)

    assert all(report.passed for report in found.reports), found.texts()


@pytest.mark.parametrize(
    ("scheduler", "test"),
    [
        ("RefusesLongerIds", "test_apps_whose_names_run_together_are_kept_apart"),
        ("RejectsWhatWasDeleted", "test_an_app_that_is_deleted_while_it_is_submitted_stays_deleted"),
    ],
)
def test_a_launch_may_be_refused(scheduler, test, tmp_path):
    """An engine with few characters for names cannot keep all of them apart, and a deletion is final."""
    found = run_test(scheduler, test, tmp_path)

    assert [report.outcome for report in found.reports] == ["passed"], found.texts()


@pytest.mark.parametrize(
    "test",
    [
        "test_exit_code_is_reported[7]",
        "test_another_process_sees_the_app",
        "test_dry_run_needs_no_engine",
        "test_describe_of_an_unknown_app_raises_nothing",
    ],
)
def test_each_scheduler_is_closed_and_each_app_is_removed(test, tmp_path):
    """A scheduler may have connections, and an engine of an author is not emptied by anything else."""
    found = run_test("CountsItsCloses", test, tmp_path)
    (record,) = tmp_path.rglob("made_and_closed")
    events = record.read_text().split()

    assert all(report.passed for report in found.reports), found.texts()
    assert events.count("made") == events.count("closed") > 0
    assert [*tmp_path.rglob("request.json")] == []


def test_the_time_zone_of_the_tests_is_restored(tmp_path):
    """Later tests of the author run in the same process."""
    before = time.tzname
    run_test("HealthyThreads", "test_since_and_until_are_honoured_or_warned_about", tmp_path)

    assert time.tzname == before


def test_an_error_of_the_other_process_has_its_class_and_its_text(tmp_path):
    """The process serves the next call, and ends by itself."""
    with OtherProcess(f"{defects.__name__}:Threads", {"root": str(tmp_path / "root")}) as other:
        with pytest.raises(OtherProcessError, match="is not there; try again when it is mounted") as caught:
            other.call("list")
        (tmp_path / "root").mkdir()
        assert other.call("list") == []

    assert caught.value.kind == "SchedulerUnavailableError"
    assert other._process.returncode == 0


def test_another_process_that_does_not_end_is_killed(monkeypatch):
    """A scheduler that hangs must not stay on the machine of its author."""
    monkeypatch.setattr(_process, "_END_TIMEOUT_S", 0.1)
    other = OtherProcess(f"{defects.__name__}:Threads", {})
    os.kill(other._process.pid, signal.SIGSTOP)
    other.close()

    assert other._process.returncode == -signal.SIGKILL


def test_the_example_ignores_an_app_that_is_gone(tmp_path):
    """Another process may delete it after this one has found it."""
    scheduler = ThreadsScheduler("test", str(tmp_path))

    scheduler._cancel_existing("app-1")
    scheduler._delete_existing("app-1")
    assert [*tmp_path.iterdir()] == []


def test_the_example_leaves_nothing_of_a_repeated_launch(tmp_path):
    """Authors copy it."""
    root = tmp_path / "root"
    root.mkdir()
    scheduler = ThreadsScheduler("test", str(root))
    app = AppDef("app", [Role("main", str(tmp_path), entrypoint="no-such-program")])
    info = scheduler.submit_dryrun(app, {}, app_id="app-1")
    scheduler.schedule(info)
    until(lambda: is_terminal(scheduler.describe("app-1").state), 30, "it has ended")
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        scheduler.schedule(info)

    assert [path.name for path in root.iterdir()] == ["app-1"]
    assert [note for note in noted if "lock" in str(note.message)] == []
    assert [*scheduler.log_iter("app-1", "main", 0)] == ["cannot start 'no-such-program': No such file or directory\n"]
    assert scheduler.describe("app-1").roles_statuses[0].replicas[0].exit_code == 127


def test_the_memory_of_this_process_is_measured_until_the_end_of_a_block():
    memory, before = _Memory(), {*threading.enumerate()}
    with memory.observed():
        text = b"x" * 200_000_000
        until(lambda: memory.grown > 100_000_000, 30, "the growth is seen")
    after = {*threading.enumerate()}

    assert len(text) > memory.grown / 10
    assert after <= before


def test_a_random_test_shows_its_seed_and_repeats_it(tmp_path, monkeypatch, capsys):
    """A rare failure is useful only if its random times can be repeated."""
    test = "test_nothing_is_lost_or_repeated_at_many_cuts"
    run_test("HealthyThreads", test, tmp_path)
    (found,) = re.findall(rf"{SEED}=(\d+)", capsys.readouterr().out)
    monkeypatch.setenv(SEED, found)
    run_test("HealthyThreads", test, tmp_path)

    assert re.findall(rf"{SEED}=(\d+)", capsys.readouterr().out) == [found]


@pytest.mark.parametrize(
    "test",
    [
        "test_a_cursor_at_the_end_stays_there",
        "test_a_follower_continues_where_another_was_cut",
    ],
)
def test_a_cursor_that_does_not_move_is_named(test, tmp_path):
    """Otherwise its author would search for repeated lines."""
    assert "the cursor did not move although lines were read" in run_test("NeverMovesTheCursor", test, tmp_path).texts()


def test_a_scheduler_that_reports_no_ends_need_not_report_them(tmp_path):
    found = run_test("HealthyThreads", "test_an_end_that_is_reported_need_not_be_asked_for", tmp_path)

    assert [report.outcome for report in found.reports if report.when == "call"] == ["skipped"]


def test_what_a_scheduler_does_not_promise_is_not_tested(tmp_path):
    words = ("same_id", "twice_starts_once", "racing", "launcher_injects", "runs_nothing_again", "killed_while_it")
    found = run_pytest(f"{SUITE}::TestAdoptsNothing", tmp_path, "-k", " or ".join(words))
    outcomes = {report.nodeid.rpartition("::")[2]: report.outcome for report in found.reports if report.when == "call"}

    assert len(outcomes) >= 9
    assert {*outcomes.values()} == {"skipped"}, outcomes


def test_every_test_of_the_contract_notices_some_defect():
    """Fix: add a scheduler with this defect to `broken/`."""
    tests = {name for name in dir(SchedulerContract) if name.startswith("test_")}
    proved = {test.partition("[")[0] for _, test in PAIRS}

    assert tests - proved == set(), "no broken scheduler fails these"
    assert proved - tests == set(), "the contract has no such tests"


def test_test_of_the_contract_cannot_be_overridden():
    with pytest.raises(TypeError, match="TestMine overrides test_one_role_runs_to_its_end"):

        class TestMine(SchedulerContract):
            def test_one_role_runs_to_its_end(self):
                pass


@pytest.mark.parametrize(
    "name",
    [
        "needs",
        "needs_option",
        "refused",
        "_expect_failure",
        "_race",
        "apps",
        "make_scheduler",
        "other_process",
        "cut_off",
    ],
)
def test_what_tests_rely_on_cannot_be_overridden(name):
    """A `needs` that always skips would make the whole contract pass."""
    with pytest.raises(TypeError, match=rf"TestMine overrides {name}\b"):
        type("TestMine", (SchedulerContract,), {name: lambda *_: None})


def test_what_a_backend_shows_about_itself_may_be_overridden():
    names = ("params", "unreachable_params", "image", "program_with_a_space", "resource", "cfg", "engine")
    fixtures = {name: pytest.fixture(lambda: None) for name in names}

    assert type("TestMine", (SchedulerContract,), {**fixtures, "create": lambda **_: None, "timeout_s": 5.0})


@pytest.mark.parametrize("name", ["params", "unreachable_params", "image", "resource", "cfg", "engine"])
def test_what_is_a_fixture_must_be_one(name):
    """Otherwise every test ends with an error far from its cause."""
    with pytest.raises(TypeError, match=rf"TestMine\.{name} must be a fixture"):
        type("TestMine", (SchedulerContract,), {name: {}})


def test_what_is_no_fixture_must_be_none():
    with pytest.raises(TypeError, match=r"TestMine\.capabilities must be a plain attribute, not a fixture"):
        type("TestMine", (SchedulerContract,), {"capabilities": pytest.fixture(lambda: None)})


def test_a_scheduler_that_removes_no_records_is_not_waited_for(tmp_path):
    """Only the tests of `delete` report it; otherwise every test would time out with an error."""
    found = run_test("OnlyCancels", "test_exit_code_is_reported[7]", tmp_path)

    assert [report.outcome for report in found.reports] == ["passed"], found.texts()


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ("ReportsFailures", "has ended before it was reported as RUNNING"),
        ("ReportsFailuresWithoutLines", "has ended, and a/0 has not written 'up'"),
    ],
)
def test_an_app_that_has_ended_is_not_waited_for(scheduler, message, tmp_path):
    """Its author would wait for each timeout, and would not see the reason."""
    found = run_test(scheduler, "test_several_roles_run_at_the_same_time", tmp_path)
    (proof,) = found.proofs()

    answer = "`describe` gives FAILED with is_stuck=False, msg 'there is no such image'"
    assert f"{message}; {answer}" in _message(proof)
    assert proof.duration < defects.Threads.timeout_s / 2


@pytest.mark.parametrize(
    ("scheduler", "test", "message"),
    [
        (
            "RaisesForUnknownApps",
            OF_UNKNOWN_APPS[0],
            "Failed: `describe` raises UnknownAppException for 'contract-never-launched', an app that does not exist",
        ),
        ("RaisesAtTheDeleteOfUnknownApps", OF_UNKNOWN_APPS[-1], "UnknownAppException: "),
    ],
)
def test_an_error_for_unknown_apps_is_one_failure(scheduler, test, message, tmp_path):
    """Most tests delete their apps at the end, so each of them would fail."""
    reports = [report for each in OF_UNKNOWN_APPS for report in run_test(scheduler, each, tmp_path).reports]
    failed = [(report.nodeid.rpartition("::")[2], _message(report)) for report in reports if report.failed]

    assert [name for name, _ in failed] == [test]
    assert message in failed[0][1]


MESSAGES = [
    (
        "ReportsACancelAtItsRequest",
        "test_nothing_runs_once_an_end_is_reported[cancel]",
        " processes of the app still ran; report it only after all have ended",
    ),
    (
        "TakesAllForWaiting",
        "test_an_app_that_cannot_start_is_reported",
        "expected PENDING with is_stuck=True and a msg; `describe` gives PENDING with is_stuck=False, msg 'never",
    ),
    (
        "DeletesIntoABin",
        "test_delete_leaves_nothing_in_the_engine[ended]",
        "is left in the engine; 1 thing is still there (`Engine.left`)",
    ),
    (
        "LeavesTheBackgroundAlone",
        "test_what_a_replica_left_in_the_background_ends_with_it",
        "is alive; 1 process still runs (`Engine.alive`)",
    ),
    ("EachScheduleStarts", "test_schedule_twice_starts_once", "started, expected 2 (`Engine.starts`)"),
    (
        "HasItsRootInTheRequest",
        "test_dry_run_needs_no_engine",
        "the request depends on `params`: request['replicas'][0]['out']: '",
    ),
    (
        "TakesAWrongResultForAnOutage",
        "test_results_that_are_not_documents_harm_no_other",
        "AssertionError: directory: an invalid result is reported as an outage: the result of contract-",
    ),
]


@pytest.mark.parametrize(("scheduler", "test", "message"), MESSAGES, ids=[scheduler for scheduler, _, _ in MESSAGES])
def test_a_failure_uses_the_words_of_the_interface(scheduler, test, message, tmp_path):
    """Its author knows the interface and the engine, not the tests."""
    found = run_test(scheduler, test, tmp_path)

    assert [message in _message(proof) for proof in found.proofs()] == [True], found.texts()


OPTIONS = [
    ("HealthyThreads", "test_time_limit_ends_the_app", "skipped", "declares that there is no option 'time_limit_s'"),
    ("NamesNoOptions", "test_time_limit_ends_the_app", "failed", "the scheduler has no option 'time_limit_s', which"),
    ("NamesItsGraceInItsOwnWay", "test_a_program_that_ignores_the_end_is_killed_after_its_grace", "passed", ""),
    ("TakesItsGraceInSteps", "test_a_program_that_ignores_the_end_is_killed_after_its_grace", "failed", "grace_s"),
    (
        "HealthyThreads",
        "test_variables_of_odd_names_of_the_launcher_do_not_disturb",
        "skipped",
        "there is no option 'copy_env', which only some schedulers have",
    ),
    (
        "RunsOneAppAtATime",
        "test_running_apps_cost_what_one_costs",
        "skipped",
        "the test needs 5 running apps, `apps_at_once` is 1",
    ),
]


@pytest.mark.parametrize(("scheduler", "test", "outcome", "reason"), OPTIONS)
def test_an_option_without_our_name_or_type_is_never_skipped_silently(scheduler, test, outcome, reason, tmp_path):
    """Its author would believe that the tests have passed."""
    (report,) = run_test(scheduler, test, tmp_path).reports

    assert report.outcome == outcome, report.longrepr
    assert reason in _message(report)


def test_a_wrong_name_of_an_option_is_refused():
    with pytest.raises(TypeError, match=r"TestMine\.option_names names graze_s; the tests know copy_env, grace_s, "):
        type("TestMine", (SchedulerContract,), {"option_names": {"graze_s": None}})


def test_the_contract_runs_from_simple_to_hard(tmp_path):
    """So `pytest -x` shows the first missing feature."""
    found = run_pytest(f"{SUITE}::TestHealthyThreads", tmp_path, "--collect-only")
    # Without the tests of the class itself.
    sections = dict.fromkeys(module.rpartition("._")[2] for module in found.collected if "._" in module)

    assert " ".join(sections) == (
        "refusals running values distributed starting ending retries logs cursors identity following outages "
        "hostile costs workspaces"
    )


def test_further_tests_may_be_added():
    class TestMine(SchedulerContract):
        def test_of_my_own(self):
            pass

    assert TestMine.test_of_my_own


def test_expected_failure_is_no_failure(tmp_path):
    (report,) = run_test("FailsAsExpected", "test_unknown_option_is_refused", tmp_path).reports

    assert report.skipped
    assert report.wasxfail == "accepts all options"


def test_unexpected_success_is_a_failure(tmp_path):
    """An outdated reason must be removed."""
    (report,) = run_test("PassesUnexpectedly", "test_unknown_option_is_refused", tmp_path).reports

    assert report.failed


@pytest.mark.parametrize("reason", ["", "  "])
def test_expected_failure_needs_a_reason(reason):
    with pytest.raises(TypeError, match="no reason"):

        class TestMine(SchedulerContract):
            xfail = {"test_one_role_runs_to_its_end": reason}  # noqa: RUF012 - as authors write it


def test_expected_failure_must_name_a_test_of_the_contract():
    """Otherwise a typing error would go unnoticed."""
    with pytest.raises(TypeError, match="not a test of the contract"):

        class TestMine(SchedulerContract):
            xfail = {"test_one_rol": "because"}  # noqa: RUF012 - the same


@pytest.mark.parametrize("name", ["MyScheduler", "MyWatchedScheduler"])
def test_contract_of_the_page_for_authors_passes(tmp_path, name):
    """The page states that it can be run unchanged."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    module = tmp_path / "test_page.py"
    module.write_text("\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)))
    found = run_test(name, "test_one_role_runs_to_its_end", tmp_path, module)

    assert [report.outcome for report in found.reports] == ["passed"], found.texts()
