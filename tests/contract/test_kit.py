"""The contract is worth what it notices: every test of it fails for a scheduler with the defect it looks for."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from airflow_provider_launch.testing import SchedulerContract
from airflow_provider_launch.testing._cursors import SEED
from tests.contract.broken import defects, streams
from tests.support.repeats import SOAK, often

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).with_name("broken") / "suite.py"
DEFECTS = defects.load_all()


def _healthy(scheduler: type) -> str:
    bases = {defects.Local: "HealthyLocal", streams.Streaming: "HealthyStreaming"}
    return next((name for base, name in bases.items() if issubclass(scheduler, base)), "HealthyThreads")


PAIRS = [(scheduler.__name__, test) for scheduler, tests in DEFECTS.items() for test in tests]
# Whether a test notices its defect changes only with this folder and the contract: a proof of each kind shows that
# proofs work at all, `make soak` and CI run all.
KINDS = {scheduler.__module__: (scheduler.__name__, tests[0]) for scheduler, tests in reversed(DEFECTS.items())}
PROOFS = often([*KINDS.values()], PAIRS)
# Where more is promised than the healthy ones offer, there is no healthy one here.
HEALTHY = sorted(
    {
        (_healthy(scheduler), test)
        for scheduler, tests in DEFECTS.items()
        for test in tests
        # Both schedulers pass the whole contract in modules of their own; here it is about the engine that is watched.
        # The streams of the healthy one do not end with their program, so a tail of them goes on; those of engines do.
        if scheduler.promised is None and (SOAK or "log_source" in test) and "test_a_tail_" not in test
    }
)
# What a broken scheduler leaves is no failure of the test that noticed it.
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
"""What a slip in the Python of a broken scheduler looks like; a defect looks like a wrong answer."""
# `OtherProcessError` repeats the class of what was raised in the other process.
_SLIP = re.compile(rf"(?:[\w.]+Error: )*(?:[\w.]+\.)?(?:{'|'.join(SLIPS)})\b")


class Recorder:
    """A plugin that keeps how each test ended, and what ended the threads of its apps."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []
        self.of_threads: list[str] = []

    def note_thread(self, args: threading.ExceptHookArgs) -> None:
        self.of_threads.append(f"{args.exc_type.__name__}: {args.exc_value}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.reports.append(report)

    def texts(self) -> str:
        return "\n".join(
            f"{report.nodeid} {report.when} {report.outcome}\n{report.longrepr}" for report in self.reports
        )

    def proofs(self) -> list[pytest.TestReport]:
        """Return the failures of the test itself, and not of a fixture before or after it."""
        return [report for report in self.reports if report.when == "call" and report.failed]

    def slips(self) -> list[str]:
        """Return what a slip of the scheduler has raised, so that the failure says nothing about the contract."""
        raised = [_message(report) for report in self.proofs()]
        return [text for text in [*raised, *self.of_threads] if _SLIP.match(text)]


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)


def run_test(scheduler: str, test: str, tmp_path: Path, module: Path = SUITE) -> Recorder:
    """Run one test of the contract, with all its parameters or one of them, for one scheduler."""
    recorder = Recorder()
    plugins = [f"-pno:{name}" for name in UNUSED]
    options = ["-Wignore", "--noconftest", "-c", "/dev/null", f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'inner'}"]
    node = f"{module}::Test{scheduler}::{test}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", recorder.note_thread)
        pytest.main([*plugins, *options, "--import-mode=importlib", node], plugins=[recorder])
    assert recorder.reports, f"no test {test}"
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
        f"{scheduler} fails {test} by a slip of its own, {found.slips()}, which proves nothing; "
        f"mend the scheduler until the test fails for its defect\n{found.texts()}"
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
    """The test fails, and would fail as well if it did not look for the defect at all."""
    found = run_test(scheduler, test, tmp_path)

    assert found.proofs()
    assert [text for text in found.slips() if slip in text], found.texts()


@pytest.mark.parametrize(("scheduler", "test"), HEALTHY)
def test_scheduler_without_the_defect_passes(scheduler, test, tmp_path):
    found = run_test(scheduler, test, tmp_path)

    assert all(report.passed for report in found.reports), found.texts()


def test_a_scheduler_may_print(tmp_path):
    """Another process answers for it, and its lines are no answers."""
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


def test_a_random_test_shows_its_seed_and_repeats_it(tmp_path, monkeypatch, capsys):
    """A failure that comes once in a hundred runs is of use only with its moments."""
    test = "test_nothing_is_lost_or_repeated_at_many_cuts"
    run_test("HealthyThreads", test, tmp_path)
    (found,) = re.findall(rf"{SEED}=(\d+)", capsys.readouterr().out)
    monkeypatch.setenv(SEED, found)
    run_test("HealthyThreads", test, tmp_path)

    assert re.findall(rf"{SEED}=(\d+)", capsys.readouterr().out) == [found]


@pytest.mark.parametrize(
    "test",
    [
        "test_a_read_is_bounded",
        "test_a_cursor_at_the_end_stays_there",
        "test_a_follower_continues_where_another_was_cut",
    ],
)
def test_a_cursor_that_does_not_move_is_named(test, tmp_path):
    """Its author would look for lines that are written twice."""
    assert "the cursor did not move although lines were read" in run_test("NeverMovesTheCursor", test, tmp_path).texts()


def test_every_test_of_the_contract_notices_some_defect():
    """Cure: add a scheduler with this defect to `broken/`."""
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
    """A `needs` that always skips would turn the whole contract green."""
    with pytest.raises(TypeError, match=rf"TestMine overrides {name}\b"):
        type("TestMine", (SchedulerContract,), {name: lambda *_: None})


def test_what_a_backend_shows_about_itself_may_be_overridden():
    names = ("params", "unreachable_params", "image", "program_with_a_blank", "resource", "cfg", "engine")
    told = {name: pytest.fixture(lambda: None) for name in names}

    assert type("TestMine", (SchedulerContract,), {**told, "create": lambda **_: None, "timeout_s": 5.0})


@pytest.mark.parametrize("name", ["params", "unreachable_params", "image", "resource", "cfg", "engine"])
def test_what_is_a_fixture_must_be_one(name):
    """Else every test ends in error, far from the cause."""
    with pytest.raises(TypeError, match=rf"TestMine\.{name} must be a fixture"):
        type("TestMine", (SchedulerContract,), {name: {}})


def test_what_is_no_fixture_must_be_none():
    with pytest.raises(TypeError, match=r"TestMine\.capabilities must be no fixture"):
        type("TestMine", (SchedulerContract,), {"capabilities": pytest.fixture(lambda: None)})


def test_a_scheduler_that_removes_no_records_is_not_waited_for(tmp_path):
    """The tests of `delete` tell it; else each of all tests would wait in vain, and end in error."""
    found = run_test("OnlyCancels", "test_exit_code_is_reported[7]", tmp_path)

    assert [report.outcome for report in found.reports] == ["passed"], found.texts()


def test_further_tests_may_be_added():
    class TestMine(SchedulerContract):
        def test_of_my_own(self):
            pass

    assert TestMine.test_of_my_own


def test_expected_failure_is_no_failure(tmp_path):
    (report,) = run_test("FailsAsExpected", "test_unknown_option_is_refused", tmp_path).reports

    assert report.skipped
    assert report.wasxfail == "takes what it gets"


def test_unexpected_success_is_a_failure(tmp_path):
    """A reason that no longer holds has to go."""
    (report,) = run_test("PassesUnexpectedly", "test_unknown_option_is_refused", tmp_path).reports

    assert report.failed


@pytest.mark.parametrize("reason", ["", "  "])
def test_expected_failure_needs_a_reason(reason):
    with pytest.raises(TypeError, match="no reason"):

        class TestMine(SchedulerContract):
            xfail = {"test_one_role_runs_to_its_end": reason}  # noqa: RUF012 - as authors write it


def test_expected_failure_must_name_a_test_of_the_contract():
    """Else a typing error would hide that nothing is expected to fail."""
    with pytest.raises(TypeError, match="not a test of the contract"):

        class TestMine(SchedulerContract):
            xfail = {"test_one_rol": "because"}  # noqa: RUF012 - the same


@pytest.mark.parametrize("name", ["MyScheduler", "MyWatchedScheduler"])
def test_contract_of_the_page_for_authors_passes(tmp_path, name):
    """The page says that it can be run as it is."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    module = tmp_path / "test_page.py"
    module.write_text("\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)))
    found = run_test(name, "test_one_role_runs_to_its_end", tmp_path, module)

    assert [report.outcome for report in found.reports] == ["passed"], found.texts()
