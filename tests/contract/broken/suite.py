"""The contract for every broken scheduler, and for the two healthy ones from which they are made.

Not collected with the other tests: `test_kit.py` runs single tests of it and looks at how they end.
"""

from __future__ import annotations

from tests.contract import test_local, test_third_party
from tests.contract.broken import defects

_HEALTHY = {"local": test_local.TestLocal, "threads": test_third_party.TestThreads}
_QUICK = {"timeout_s": 5, "many": 20}


def _contract(name: str, backend: str, **attributes: object) -> None:
    globals()[f"Test{name}"] = type(f"Test{name}", (_HEALTHY[backend],), {**_QUICK, **attributes})


for _backend in _HEALTHY:
    _contract(f"Healthy{_backend.title()}", _backend)
for _broken in defects.load_all():
    _kind = "local" if issubclass(_broken, defects.LocalScheduler) else "threads"
    _contract(_broken.__name__, _kind, factory=f"{_broken.__module__}:{_broken.__name__}")
