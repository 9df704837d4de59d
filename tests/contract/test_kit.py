"""The contract is worth what it notices: every test of it fails for a scheduler with the defect it looks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_provider_launch.testing import SchedulerContract
from tests.contract.broken import defects

ROOT = Path(__file__).resolve().parents[2]
SUITE = Path(__file__).with_name("broken") / "suite.py"
DEFECTS = defects.load_all()
PAIRS = [(scheduler.__name__, test) for scheduler, tests in DEFECTS.items() for test in tests]
# Where more is promised than the healthy ones offer, there is no healthy one here.
HEALTHY = sorted(
    {
        ("HealthyLocal" if issubclass(scheduler, defects.Local) else "HealthyThreads", test)
        for scheduler, tests in DEFECTS.items()
        for test in tests
        if scheduler.promised is None
    }
)
# What a broken scheduler leaves is no failure of the test that noticed it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
UNUSED = ("cacheprovider", "terminal", "capture", "logging", "junitxml", "timeout", "xdist", "faulthandler")


class Recorder:
    """A plugin that keeps how each test ended."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.reports.append(report)

    def texts(self) -> str:
        return "\n".join(
            f"{report.nodeid} {report.when} {report.outcome}\n{report.longrepr}" for report in self.reports
        )


def run_test(scheduler: str, test: str, tmp_path: Path, module: Path = SUITE) -> Recorder:
    """Run one test of the contract, with all its parameters or one of them, for one scheduler."""
    recorder = Recorder()
    plugins = [f"-pno:{name}" for name in UNUSED]
    options = ["-Wignore", "--noconftest", "-c", "/dev/null", f"--rootdir={ROOT}", f"--basetemp={tmp_path / 'inner'}"]
    node = f"{module}::Test{scheduler}::{test}"
    pytest.main([*plugins, *options, "--import-mode=importlib", node], plugins=[recorder])
    assert recorder.reports, f"no test {test}"
    return recorder


@pytest.fixture(autouse=True)
def _plain_pytest(monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


@pytest.mark.parametrize(("scheduler", "test"), PAIRS)
def test_defect_is_noticed(scheduler, test, tmp_path):
    found = run_test(scheduler, test, tmp_path)

    # The test itself, and not a fixture before or after it.
    assert [report for report in found.reports if report.when == "call" and report.failed], found.texts()


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
    "test",
    ["test_a_read_is_bounded", "test_a_cursor_at_the_end_stays_there", "test_a_follower_goes_on_where_another_was_cut"],
)
def test_a_cursor_that_does_not_move_is_named(test, tmp_path):
    """Its author would look for lines that are written twice."""
    assert "the cursor did not move although lines came" in run_test("NeverMovesTheCursor", test, tmp_path).texts()


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
    with pytest.raises(TypeError, match="no test of the contract"):

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
