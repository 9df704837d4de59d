"""The contract for every broken scheduler and for the healthy base schedulers.

Not collected with the other tests: `test_kit.py` runs single tests of it and checks their outcome.
"""

from __future__ import annotations

import pytest

from tests.contract import test_local, test_third_party
from tests.contract.broken import defects, identity, logs, refusals, running, slips, streams


class _Quick:
    many = 20

    @pytest.fixture
    def image(self, tmp_path):
        directory = tmp_path / "image"
        directory.mkdir()
        yield str(directory)
        defects.end_all(directory)


class _Local(_Quick, test_local.TestLocal):
    factory = f"{defects.__name__}:Local"


class _Threads(_Quick, test_third_party.TestThreads):
    factory = f"{defects.__name__}:Threads"

    @pytest.fixture
    def engine(self, tmp_path):
        return defects.WatchedEngine(tmp_path)


class TestHealthyLocal(_Local):
    pass


class TestHealthyThreads(_Threads):
    pass


class TestHealthyStreaming(_Threads):
    factory = f"{streams.__name__}:Streaming"


class TestPrintsWhatItDoes(_Threads):
    factory = f"{identity.__name__}:PrintsWhatItDoes"


class TestAdoptsNothing(_Threads):
    factory = f"{identity.__name__}:AdoptsNothing"
    capabilities = identity.AdoptsNothing.capabilities


class TestOffersRank0WithoutPorts(_Local):
    factory = f"{running.__name__}:OffersRank0WithoutPorts"
    capabilities = running.OffersRank0WithoutPorts.capabilities


class TestRejectsWhatWasDeleted(_Threads):
    factory = f"{identity.__name__}:RejectsWhatWasDeleted"


class TestRefusesLongerIds(_Threads):
    factory = f"{refusals.__name__}:RefusesLongerIds"


class TestCountsItsCloses(_Threads):
    factory = f"{running.__name__}:CountsItsCloses"


class TestKeepsOneStream(_Threads):
    factory = f"{logs.__name__}:KeepsOneStream"
    capabilities = logs.KeepsOneStream.capabilities


class TestNamesItsGraceInItsOwnWay(_Threads):
    factory = f"{refusals.__name__}:NamesItsGraceInItsOwnWay"
    option_names = {"time_limit_s": None, "grace_s": "patience"}  # noqa: RUF012 - as authors write it


class TestTakesItsGraceInSteps(_Threads):
    factory = f"{refusals.__name__}:TakesItsGraceInSteps"


class TestNamesNoOptions(_Threads):
    option_names = {}  # noqa: RUF012 - the same


class TestRunsOneAppAtATime(_Threads):
    apps_at_once = 1


class TestFailsAsExpected(_Threads):
    xfail = {"test_unknown_option_is_refused": "accepts all options"}  # noqa: RUF012 - the same
    factory = "tests.contract.broken.refusals:TakesUnknownOptions"


class TestPassesUnexpectedly(_Threads):
    xfail = {"test_unknown_option_is_refused": "accepts all options"}  # noqa: RUF012 - the same


for _broken in (*defects.load_all(), *slips.SLIPPING):
    _healthy = _Local if issubclass(_broken, defects.Local) else _Threads
    globals()[f"Test{_broken.__name__}"] = type(
        f"Test{_broken.__name__}",
        (_healthy,),
        {
            "factory": f"{_broken.__module__}:{_broken.__name__}",
            "capabilities": _broken.promised or _healthy.capabilities,
            "timeout_s": _broken.timeout_s,
            "xfail": {},
        },
    )
