"""Schedulers that fail by a Python error, which proves nothing about the contract, so they name no tests."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_launch.testing.example_scheduler import AppThread
from tests.contract.broken.defects import Threads


class SlipsAtOnce(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        return json.loads(f"{[*app_ids]}")


class SlipsInAnotherProcess(Threads):
    def describe_many(self, app_ids: Any) -> Any:
        return {}[self.session_name] if self.session_name == "other" else super().describe_many(app_ids)


class _Slip(AppThread):
    def _publish(self, state: str, msg: str) -> None:
        super()._publish(state, msg + 1)  # type: ignore[operator]


class SlipsInItsThread(Threads):
    timeout_s = 1
    app_thread = _Slip


SLIPPING = (SlipsAtOnce, SlipsInAnotherProcess, SlipsInItsThread)
