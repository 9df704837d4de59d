"""Defects of schedulers that trust the output of programs."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_launch.schedulers.api import DescribeAppResponse, JsonValue, ListAppResponse, LogChunk
from airflow_provider_launch.specs.errors import AppUnavailableError, InvalidAppError, SchedulerUnavailableError
from airflow_provider_launch.specs.roles import Role
from airflow_provider_launch.specs.states import AppState, is_terminal
from tests.contract.broken.defects import Local, caught_by

FILES = "test_apps_that_damage_their_files_harm_no_other"
DAMAGED = "test_what_is_damaged_in_the_engine_harms_no_other_app"
RESULTS = "test_results_that_are_not_documents_harm_no_other"


class _Failed(Local):
    """Base of defects in reading failed apps."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        for each in found.values():
            if each is not None and each.state is AppState.FAILED:
                self.touch(each)
        return found

    def touch(self, response: DescribeAppResponse) -> None:
        raise NotImplementedError


@caught_by(FILES)
class TakesADamagedFileForAnOutage(_Failed):
    def touch(self, response: DescribeAppResponse) -> None:
        raise SchedulerUnavailableError(f"the error file of {response.app_id} cannot be read")


@caught_by(FILES)
class ShowsANul(_Failed):
    def touch(self, response: DescribeAppResponse) -> None:
        response.structured_error_msg = "\0"


@caught_by(FILES)
class ShowsALongMessage(_Failed):
    def touch(self, response: DescribeAppResponse) -> None:
        response.msg = "x" * 100_000


@caught_by(FILES)
class ShowsAReasonOfManyLines(_Failed):
    def touch(self, response: DescribeAppResponse) -> None:
        response.roles_statuses[0].replicas[0].reason = "a\nb"


@caught_by(FILES)
class FollowsALink(_Failed):
    def touch(self, response: DescribeAppResponse) -> None:
        response.structured_error_msg = (Path(self._records.root).parent / "secret").read_text()


@caught_by(FILES)
class ReadsAFileAsAWhole(_Failed):
    def touch(self, response: DescribeAppResponse) -> None:
        response.metadata["file"] = "x" * 900_000_000


@caught_by(FILES)
class ListsNothingWhileOneAppIsDamaged(Local):
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        found = super().list(cfg)
        if any(row.state is AppState.FAILED for row in found):
            raise SchedulerUnavailableError("a record is damaged")
        return found


@caught_by(FILES)
class LeavesOutADamagedApp(Local):
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        return [row for row in super().list(cfg) if row.state is not AppState.FAILED]


@caught_by(FILES)
class KeepsALineWithoutAnEnd(Local):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([_longer(line) for line in chunk.lines], chunk.cursor)


def _longer(line: Any) -> Any:
    return line._replace(text="x" * 500_000_000) if line.text.startswith("xxx") else line


@caught_by(FILES)
class LosesLinesOfOthers(Local):
    def read_logs(self, *args: Any, **kwargs: Any) -> LogChunk:
        chunk = super().read_logs(*args, **kwargs)
        return LogChunk([line for line in chunk.lines if line.text != "77\n"], chunk.cursor)


@caught_by(RESULTS)
class TakesAWrongResultForAnOutage(Local):
    def result(self, app_id: str) -> JsonValue:
        raise SchedulerUnavailableError(f"the result of {app_id} cannot be read")


@caught_by(RESULTS)
class ShowsTheTargetOfALinkInAnError(Local):
    def result(self, app_id: str) -> JsonValue:
        text = (Path(self._records.root).parent / "secret").read_text()
        raise InvalidAppError(f"the result of {app_id} is {text}; write one JSON document")


@caught_by(RESULTS)
class HandsBackReservedKeys(Local):
    def result(self, app_id: str) -> JsonValue:
        return {"__classname__": app_id}


@caught_by(RESULTS)
class FailsAnAppForItsResult(Local):
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        found = super().describe_many(app_ids)
        for each in found.values():
            if each is not None and is_terminal(each.state):
                each.state = AppState.FAILED
        return found


@caught_by(DAMAGED)
class TakesADamagedRecordForAnOutage(Local):
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        try:
            return super().describe_many(app_ids)
        except AppUnavailableError as error:
            raise SchedulerUnavailableError(str(error)) from error


@caught_by(DAMAGED)
class ListsNothingWhileARecordIsDamaged(Local):
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        found = super().list(cfg)
        if any(row.state is AppState.UNKNOWN for row in found):
            raise SchedulerUnavailableError("a record is damaged")
        return found


@caught_by(DAMAGED)
class LeavesOutADamagedRecord(Local):
    def list(self, cfg: Mapping[str, Any] | None = None) -> builtins.list[ListAppResponse]:
        return [row for row in super().list(cfg) if row.state is not AppState.UNKNOWN]


@caught_by(DAMAGED)
class BelievesANumberOfReplicas(Local):
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        try:
            return super().describe_many(app_ids)
        except AppUnavailableError as error:
            roles = [Role("main", "", num_replicas=10**9)]
            damaged = {app_id: DescribeAppResponse(app_id, AppState.RUNNING, roles=roles) for app_id in error.texts}
            return {**self.describe_many([each for each in app_ids if each not in damaged]), **damaged}
