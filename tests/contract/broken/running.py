"""Defects in running apps, their inputs and their reports."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

from airflow_provider_launch.schedulers.api import Capability, DescribeAppResponse, LogChunk
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import InvalidAppError, LaunchError, UnknownAppException, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.specs.statuses import ReplicaStatus
from airflow_provider_launch.testing.example_scheduler import AppThread
from tests.contract.broken.defects import Local, Threads, caught_by

# ---- reports ------------------------------------------------------------------------------------------------


@caught_by("test_declared_capabilities_are_those_of_the_scheduler")
class DeclaresMore(Threads):
    capabilities = frozenset({*Threads.capabilities, Capability.RESULT})


@caught_by("test_one_role_runs_to_its_end", "test_each_replica_runs_once[5]")
class StartsEachReplicaTwice(Threads):
    def schedule(self, dryrun_info: Any) -> str:
        dryrun_info.request["replicas"] *= 2
        return super().schedule(dryrun_info)


@caught_by("test_each_replica_runs_once[50]")
class StartsTenReplicasAtMost(Threads):
    def schedule(self, dryrun_info: Any) -> str:
        dryrun_info.request["replicas"] = dryrun_info.request["replicas"][:10]
        return super().schedule(dryrun_info)


class ChangesWhatIsTold(Threads):
    """Base of defects in the answer about one app."""

    def reported(self, found: DescribeAppResponse) -> None:
        raise NotImplementedError

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for response in found.values():
            if response:
                self.reported(response)
        return found


@caught_by("test_several_roles_run_at_the_same_time")
class ReportsFailures(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        found.state, found.msg = AppState.FAILED, "there is no such image"


@caught_by("test_several_roles_run_at_the_same_time")
class ReportsFailuresWithoutLines(ReportsFailures):
    def _read(self, path: Path, at: int, ended: bool) -> tuple[str, int]:
        return "", at


class ChangesReplicas(ChangesWhatIsTold):
    """Base of defects in the report of a replica."""

    def reported(self, found: DescribeAppResponse) -> None:
        for role in found.roles_statuses:
            for replica in role.replicas:
                self.change_report(replica)

    def change_report(self, replica: ReplicaStatus) -> None:
        raise NotImplementedError


@caught_by("test_an_app_that_cannot_start_is_reported")
class TakesAllForWaiting(ChangesWhatIsTold):
    timeout_s = 3

    def reported(self, found: DescribeAppResponse) -> None:
        found.is_stuck = False


@caught_by("test_an_app_that_has_started_may_continue")
class TakesWhatRunsForStuck(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        found.is_stuck = True


@caught_by("test_an_app_that_has_not_started_in_time_is_cancelled")
class CancelsOnlyWhatRuns(Threads):
    timeout_s = 4

    def _cancel_existing(self, app_id: str) -> None:
        found = self.describe(app_id)
        if found is not None and found.state is AppState.RUNNING:
            super()._cancel_existing(app_id)


@caught_by("test_an_app_that_never_started_is_not_running_during_its_cancel")
class CountsEachCancelledAppAsStarted(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        if (self.root / found.app_id / "cancel").exists() and not is_terminal(found.state):
            found.state = AppState.RUNNING


@caught_by("test_several_roles_run_at_the_same_time")
class TellsOfTheFirstRoleOnly(ChangesWhatIsTold):
    timeout_s = 4

    def reported(self, found: DescribeAppResponse) -> None:
        del found.roles_statuses[1:]


class _Serial(AppThread):
    def _start(self, number: int) -> subprocess.Popen[bytes]:
        process = super()._start(number)
        replicas = self.request["replicas"]
        is_last = number + 1 == len(replicas) or replicas[number + 1]["role"] != replicas[number]["role"]
        while is_last and process.poll() is None and not self._is_cancelled():
            time.sleep(0.02)
        return process


@caught_by("test_several_roles_run_at_the_same_time")
class RunsRolesOneAfterTheOther(Threads):
    timeout_s = 4
    app_thread = _Serial


@caught_by("test_start_and_end_of_a_replica_are_reported[3]")
class TellsNoTimes(ChangesReplicas):
    def change_report(self, replica: ReplicaStatus) -> None:
        replica.start_time = replica.end_time = None


@caught_by("test_start_and_end_of_a_replica_are_reported[0]")
class TellsTheEndOfFailuresOnly(ChangesReplicas):
    def change_report(self, replica: ReplicaStatus) -> None:
        if replica.exit_code == 0:
            replica.end_time = None


@caught_by("test_one_role_runs_to_its_end", "test_exit_code_is_reported[7]", "test_signal_is_reported[KILL-137]")
class ForgetsExitCodes(ChangesReplicas):
    def change_report(self, replica: ReplicaStatus) -> None:
        replica.exit_code = None


@caught_by("test_exit_code_is_reported[7]", "test_exit_code_is_reported[255]")
class TellsEveryFailureAs1(ChangesReplicas):
    def change_report(self, replica: ReplicaStatus) -> None:
        replica.exit_code = replica.exit_code and 1


@caught_by("test_what_a_program_writes_about_its_failure_is_reported")
class TellsNothingThatAProgramWrote(Local):
    def _add_error_files(self, app_id: str, response: DescribeAppResponse) -> bool:
        return True


@caught_by("test_notes_about_the_app_are_kept")
class ForgetsNotes(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        found.metadata = {}


@caught_by("test_signal_is_reported[TERM-143]", "test_signal_is_reported[KILL-137]")
class TellsSignalsAsPythonDoes(ChangesReplicas):
    def change_report(self, replica: ReplicaStatus) -> None:
        if replica.exit_code and replica.exit_code > 128:
            replica.exit_code = 128 - replica.exit_code


@caught_by("test_each_replica_has_its_own_exit_code")
class GivesAllReplicasTheWorstExitCode(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        replicas = [replica for role in found.roles_statuses for replica in role.replicas]
        for replica in replicas:
            replica.exit_code = max((other.exit_code or 0 for other in replicas), default=0)


# ---- inputs -------------------------------------------------------------------------------------------------


class ChangesTheReplica(Threads):
    """Base of defects in the inputs of one replica."""

    def changed(self, replica: dict[str, Any], role: Role) -> None:
        raise NotImplementedError

    def _replica(self, role: Role, k: int, app_id: str) -> dict[str, Any]:
        replica = super()._replica(role, k, app_id)
        self.changed(replica, role)
        return replica


@caught_by("test_a_replica_learns_who_it_is")
class TellsNoReplicaItsNumber(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        del replica["env"]["LAUNCH_REPLICA_ID"]


@caught_by("test_missing_program_fails_the_app_and_is_named", "test_a_program_with_a_space_in_its_name_runs")
class SplitsTheProgramAtBlanks(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [*role.entrypoint.split(), *replica["argv"][1:]]


@caught_by("test_a_program_with_a_space_in_its_name_runs")
class PutsTheProgramIntoQuotes(ChangesTheReplica):
    """Quotes for a shell, although no shell is used."""

    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [shlex.quote(role.entrypoint), *replica["argv"][1:]]


@caught_by("test_macros_are_replaced_per_replica_in_args_and_env")
class ReplacesMacrosInArgsOnly(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["env"] |= role.env


@caught_by(
    "test_macros_are_replaced_per_replica_in_args_and_env",
    "test_each_replica_runs_once[5]",
    "test_logs_of_roles_and_replicas_are_not_mixed_up",
)
class NumbersAllReplicas0(Threads):
    def _replica(self, role: Role, k: int, app_id: str) -> dict[str, Any]:
        return {**super()._replica(role, 0, app_id), "id": k}


@caught_by("test_macros_in_metadata_do_not_disturb")
class DropsMetadata(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        for role in found.roles:
            role.metadata = {}


@caught_by("test_dollars_that_are_no_macros_are_kept")
class ReplacesUnknownMacros(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [re.sub(r"\$\{\w+\}", "", arg) for arg in replica["argv"]]


@caught_by("test_dollars_that_are_no_macros_are_kept")
class KeepsDoubledDollars(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [role.entrypoint, *role.args]


@caught_by("test_args_reach_the_program_unchanged")
class JoinsTheLinesOfArgs(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [" ".join(arg.splitlines()) for arg in replica["argv"]]


@caught_by("test_args_reach_the_program_unchanged")
class DropsEmptyArgs(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [arg for arg in replica["argv"] if arg]


class ChangesEnv(ChangesTheReplica):
    """Base of defects in the values of variables."""

    def value(self, text: str) -> str:
        raise NotImplementedError

    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["env"] |= {name: self.value(replica["env"][name]) for name in role.env}


@caught_by("test_env_reaches_the_program_unchanged")
class DropsNewlinesOfEnv(ChangesEnv):
    def value(self, text: str) -> str:
        return text.replace("\n", "")


@caught_by("test_env_reaches_the_program_unchanged")
class CutsEnvAtCommas(ChangesEnv):
    def value(self, text: str) -> str:
        return text.partition(",")[0]


@caught_by(
    "test_env_reaches_the_program_unchanged", "test_the_longest_text_of_a_kernel_arrives_or_is_refused[variable]"
)
class CutsEnvTo32Kilobytes(ChangesEnv):
    def value(self, text: str) -> str:
        return text[:32768]


@caught_by("test_env_reaches_the_program_unchanged")
class KnowsAsciiOnly(ChangesEnv):
    def value(self, text: str) -> str:
        return text.encode("ascii", "replace").decode()


@caught_by("test_names_and_values_of_variables_arrive_or_are_refused")
class DropsNamesThatNoShellTakes(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["env"] = {name: text for name, text in replica["env"].items() if re.fullmatch(r"[A-Za-z_]\w*", name)}


@caught_by("test_names_and_values_of_variables_arrive_or_are_refused")
class RefusesNamesWithoutACure(Threads):
    def _refuse_unsupported(self, role: Role) -> None:
        super()._refuse_unsupported(role)
        for name in role.env:
            if "." in name:
                raise UnsupportedError(f"role {role.name!r}: env: {name!r} is not offered")


@caught_by("test_values_in_arguments_arrive")
class ReplacesMacrosTwice(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = macros.substitute(replica["argv"], "", "an-id", "0")


@caught_by("test_the_longest_text_of_a_kernel_arrives_or_is_refused[argument]")
class CutsArgsTo100000Letters(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["argv"] = [arg[:100_000] for arg in replica["argv"]]


@caught_by("test_variables_of_the_launcher_do_not_replace_those_of_the_scheduler")
class LetsVariablesOfTheLauncherWin(Local):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        with_env(info.request, lambda _: {name: os.environ[name] for name in cfg["copy_env"] or ()})
        return info


@caught_by("test_variables_of_odd_names_of_the_launcher_do_not_disturb")
class CopiesNothingWhereANameIsOdd(Local):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        for role in info.request.roles:
            if not all(name.isidentifier() for name in role.env):
                role.env.clear()
        return info


@caught_by("test_environment_of_the_launcher_is_not_inherited")
class InheritsEverything(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["env"] = {**os.environ, **replica["env"]}


# ---- names ---------------------------------------------------------------------------------------------------


@caught_by("test_odd_and_long_names_of_roles_are_kept")
class CutsLongNames(ChangesWhatIsTold):
    def reported(self, found: DescribeAppResponse) -> None:
        for role in found.roles_statuses:
            role.role = role.role[:63]


@caught_by("test_odd_and_long_names_of_apps_give_valid_ids", "test_apps_without_an_id_get_different_ones")
class TakesTheNameForTheId(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        return super()._submit_dryrun(app, cfg, app_id=app_id or app.name)


@caught_by("test_roles_whose_names_look_alike_are_kept_apart_or_refused")
class MixesUpRolesThatLookAlike(Threads):
    """Names its log files after the roles, in characters that every file system supports."""

    def read_logs(self, app_id: str, role_name: str, *args: Any, **kwargs: Any) -> LogChunk:
        found = self.describe(app_id)
        names = [role.name for role in found.roles] if found else [role_name]
        return super().read_logs(app_id, self._first_alike(names, role_name), *args, **kwargs)

    @staticmethod
    def _first_alike(names: list[str], wanted: str) -> str:
        def plain(name: str) -> str:
            return re.sub(r"[^a-z0-9]", "-", name.lower())

        return next((name for name in names if plain(name) == plain(wanted)), wanted)


@caught_by("test_apps_whose_names_run_together_are_kept_apart")
class JoinsTheNamesOfAppAndRole(Threads):
    """Uses one name for app and role in the names of log files."""

    files: ClassVar[dict[str, tuple[str, str]]] = {}

    def schedule(self, dryrun_info: Any) -> str:
        app_id = super().schedule(dryrun_info)
        for replica in dryrun_info.request["replicas"]:
            self.files.setdefault(f"{app_id}-{replica['role']}", (app_id, replica["role"]))
        return app_id

    def read_logs(self, app_id: str, role_name: str, *args: Any, **kwargs: Any) -> LogChunk:
        return super().read_logs(*self.files.get(f"{app_id}-{role_name}", (app_id, role_name)), *args, **kwargs)


# ---- together, and result ------------------------------------------------------------------------------------


def with_env(request: Any, env: Callable[[int], dict[str, str]]) -> None:
    """Add variables to every replica of a request of the local scheduler."""
    numbered = enumerate(replica for role in request.roles for replica in role.replicas)
    for number, replica in numbered:
        replica.env.update(env(number))


@caught_by("test_every_replica_reaches_rank_0")
class TellsNobodyWhereRank0Is(Local):
    timeout_s = 4

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        with_env(info.request, lambda _: {"TORCHX_RANK0_HOST": ""})
        return info


class OffersRank0WithoutPorts(Local):
    """Not broken: its replicas connect at ports that the app has chosen."""

    capabilities = promised = Local.capabilities - {Capability.PORTS}

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        for role in app.roles:
            if role.port_map:
                raise UnsupportedError(f"role {role.name!r}: port_map is not offered by 'local'; leave it out")
        return super()._submit_dryrun(app, cfg, app_id=app_id)


@caught_by("test_replicas_agree_on_ports")
class EachReplicaChoosesItsPort(Local):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        with_env(info.request, lambda number: {"LAUNCH_PORT_HEAD_RPC": str(20000 + number)})
        return info


@caught_by("test_result_is_handed_back")
class ForgetsTheResult(Local):
    def result(self, app_id: str) -> Any:
        return None


@caught_by("test_result_of_a_failed_app_is_handed_back")
class ForgetsTheResultOfAFailure(Local):
    def result(self, app_id: str) -> Any:
        found = self.describe(app_id)
        return None if found and found.state is AppState.FAILED else super().result(app_id)


@caught_by("test_result_is_that_of_the_first_replica")
class HandsBackTheLatestDocument(Local):
    """Every replica may write one."""

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        image = app.roles[0].image
        with_env(info.request, lambda number: {"LAUNCH_RESULT_PATH": f"{image}/{app_id}-{number}.result"})
        return info

    def result(self, app_id: str) -> Any:
        app = self._records.app(app_id)
        found = Path(app["request"]["roles"][0]["image"]).glob(f"{app_id}-*.result")
        return json.loads(max(found, key=lambda path: path.stat().st_mtime).read_text())


@caught_by("test_every_replica_of_the_first_role_may_write_a_result")
class GivesThePathOfTheResultToOneReplica(Local):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        with_env(info.request, lambda number: {"LAUNCH_RESULT_PATH": ""} if number else {})
        return info


@caught_by("test_result_is_that_of_the_lowest_replica_that_wrote_one")
class ReadsTheFirstReplicaOnly(Local):
    def result(self, app_id: str) -> Any:
        return next(self.iter_results(app_id))


@caught_by("test_results_of_all_replicas_are_handed_back_in_order")
class LeavesOutReplicasWithoutAResult(Local):
    def iter_results(self, app_id: str) -> Any:
        yield from (found for found in super().iter_results(app_id) if found is not None)


@caught_by("test_an_empty_result_is_none")
class TakesAnEmptyResultForABrokenOne(Local):
    def result(self, app_id: str) -> Any:
        found = super().result(app_id)
        if found is None:
            raise InvalidAppError("the result is not JSON: Expecting value")
        return found


@caught_by("test_no_result_is_none")
class InventsAResult(Threads):
    def result(self, app_id: str) -> Any:
        return {}


@caught_by("test_broken_or_large_result_is_an_error[broken]", "test_broken_or_large_result_is_an_error[large]")
class TakesABrokenResultForNone(Local):
    def result(self, app_id: str) -> Any:
        try:
            return super().result(app_id)
        except LaunchError:
            return None


@caught_by(
    "test_broken_or_large_result_is_an_error[large]",
    "test_result_of_a_failed_attempt_is_none",
)
class HandsBackAnyDocument(Local):
    def result(self, app_id: str) -> Any:
        found = sorted(
            (Path(self.root) / "apps" / app_id / "run").rglob("result"), key=lambda path: path.stat().st_mtime
        )
        return json.loads(found[-1].read_text()) if found else None


@caught_by("test_result_of_an_unknown_app_is_an_error")
class TellsNoResultOfUnknownApps(Local):
    def result(self, app_id: str) -> Any:
        try:
            return super().result(app_id)
        except UnknownAppException:
            return None


# ---- dry run -------------------------------------------------------------------------------------------------


@caught_by("test_app_and_cfg_of_the_caller_are_left_as_they_are")
class ChangesTheCallersApp(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        app.roles[0].env["LAUNCH_APP_ID"] = info.request["app_id"]
        return info


@caught_by("test_app_and_cfg_of_the_caller_are_left_as_they_are")
class ChangesTheCallersCfg(Threads):
    def submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        cfg.setdefault("grace_s", 1.0)
        return super().submit_dryrun(app, cfg, app_id=app_id)


@caught_by("test_dry_run_equals_what_is_sent")
class SendsSomethingElse(Threads):
    def schedule(self, dryrun_info: Any) -> str:
        request = copy.deepcopy(dryrun_info.request)
        request["replicas"][0]["env"]["EXTRA"] = "1"
        return super().schedule(AppDryRunInfo(request, str))


class _Improver(AppThread):
    """Stores the request unchanged, but starts something else."""

    def __init__(self, app_dir: Path, request: dict[str, Any], lock: IO[str]) -> None:
        replicas = [self.improved(replica) for replica in copy.deepcopy(request["replicas"])]
        super().__init__(app_dir, {**request, "replicas": replicas}, lock)

    def improved(self, replica: dict[str, Any]) -> dict[str, Any]:
        return {**replica, "argv": [*replica["argv"], "--verbose"]}


@caught_by("test_dry_run_equals_what_is_sent")
class RunsWithOtherArgs(Threads):
    app_thread = _Improver


class _Renamer(_Improver):
    def improved(self, replica: dict[str, Any]) -> dict[str, Any]:
        return {**replica, "env": {**replica["env"], "WHO": "another user"}}


@caught_by("test_dry_run_equals_what_is_sent")
class RunsInAnotherEnv(Threads):
    app_thread = _Renamer


@caught_by("test_dry_run_repeated_gives_the_same_request")
class PutsTheTimeIntoTheRequest(ChangesTheReplica):
    def changed(self, replica: dict[str, Any], role: Role) -> None:
        replica["env"]["REQUESTED_AT"] = str(time.time_ns())


@caught_by("test_dry_run_starts_nothing")
class SchedulesAtDryRun(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        self.schedule(info)
        return info


@caught_by("test_dry_run_needs_no_engine")
class NeedsTheEngineForADryRun(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        self._reached()
        return super()._submit_dryrun(app, cfg, app_id=app_id)


@caught_by("test_dry_run_needs_no_engine")
class HasItsRootInTheRequest(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request["replicas"][0]["out"] = str(self.root / "out")
        return info


@caught_by("test_dry_run_hides_secrets")
class ShowsSecrets(Threads):
    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        return AppDryRunInfo(super()._submit_dryrun(app, cfg, app_id=app_id).request, json.dumps)


# ---- retries -------------------------------------------------------------------------------------------------


class ChangesRoles(Local):
    """Base of defects in the roles that are passed to the supervisor."""

    def changed(self, role: Any) -> Any:
        raise NotImplementedError

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        info = super()._submit_dryrun(app, cfg, app_id=app_id)
        info.request.roles = [self.changed(role) for role in info.request.roles]
        return info


@caught_by(
    "test_replica_retries_restart_that_replica_exactly_as_often[1]",
    "test_application_retries_restart_all_roles_exactly_as_often[1]",
    "test_retries_are_exact_with_many_observers[REPLICA]",
    "test_retries_are_exact_with_many_observers[APPLICATION]",
)
class RetriesOnceTooOften(ChangesRoles):
    def changed(self, role: Any) -> Any:
        return dataclasses.replace(role, max_retries=role.max_retries + bool(role.max_retries))


@caught_by(
    "test_replica_retries_restart_that_replica_exactly_as_often[1]",
    "test_application_retries_restart_all_roles_exactly_as_often[1]",
    "test_a_retry_that_succeeds_makes_the_app_succeed",
    "test_peers_with_different_policies_keep_their_own_count",
)
class RetriesNothing(ChangesRoles):
    def changed(self, role: Any) -> Any:
        return dataclasses.replace(role, max_retries=0)


@caught_by("test_replica_retries_restart_that_replica_exactly_as_often[1]")
class RestartsTheAppForAReplica(ChangesRoles):
    def changed(self, role: Any) -> Any:
        return dataclasses.replace(role, policy="APPLICATION")


@caught_by("test_application_retries_restart_all_roles_exactly_as_often[1]")
class RestartsTheReplicaAlone(ChangesRoles):
    def changed(self, role: Any) -> Any:
        return dataclasses.replace(role, policy="REPLICA")


@caught_by("test_success_is_not_retried")
class RunsASuccessAgain(ChangesRoles):
    def changed(self, role: Any) -> Any:
        again = ["-c", '"$0" "$@"; exec "$0" "$@"', role.entrypoint]
        replicas = [dataclasses.replace(replica, args=[*again, *replica.args]) for replica in role.replicas]
        return dataclasses.replace(role, entrypoint="sh", replicas=replicas)


@caught_by("test_role_retries_restart_the_whole_role_and_no_other")
class TakesRoleRetriesForReplicaRetries(Local):
    capabilities = promised = frozenset({*Local.capabilities, Capability.ROLE_RETRY})

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        changed = copy.deepcopy(app)
        for role in changed.roles:
            role.retry_policy = {"ROLE": "REPLICA"}.get(role.retry_policy, role.retry_policy)  # type: ignore[assignment,call-overload]
        return super()._submit_dryrun(changed, cfg, app_id=app_id)


@caught_by("test_a_retry_that_succeeds_makes_the_app_succeed")
class ForgetsToCountRestarts(Local):
    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for response in found.values():
            if response:
                response.num_restarts = 0
        return found


@caught_by("test_cancel_ends_the_retries")
class SaysCancelledAndGoesOn(Local):
    cancelled: ClassVar[set[str]] = set()

    def _cancel_existing(self, app_id: str) -> None:
        self.cancelled.add(app_id)

    def describe_many(self, app_ids: Any) -> Any:
        found = super().describe_many(app_ids)
        for app_id, response in found.items():
            if response and app_id in self.cancelled:
                response.state = AppState.CANCELLED
        return found


class _StartsMore(AppThread):
    def _publish(self, state: str, msg: str) -> None:
        if state in {"PENDING", "RUNNING"}:
            with (self.dir / "started").open("a") as started:
                started.write("a program that is not reported\n")
        super()._publish(state, msg)


@caught_by(
    "test_one_role_runs_to_its_end",
    "test_each_replica_runs_once[5]",
    "test_any_policy_is_accepted_without_retries",
    "test_an_app_that_cannot_start_is_reported",
    "test_an_app_that_has_not_started_in_time_is_cancelled",
    "test_schedule_twice_starts_once",
    "test_racing_threads_start_one_app",
    "test_racing_processes_start_one_app",
    "test_same_id_with_another_app_is_a_conflict",
    "test_same_id_with_another_option_is_a_conflict",
    "test_what_the_launcher_injects_is_no_conflict",
    "test_schedule_after_the_end_runs_nothing_again",
    "test_schedule_after_cancel_runs_nothing_again",
    "test_unreachable_is_an_error_and_never_an_answer[describe]",
    "test_an_app_that_could_not_be_launched_is_launched_by_the_same_call",
)
class StartsMoreThanItReports(Threads):
    """Its answers and logs are correct; only the engine shows the other programs."""

    app_thread = _StartsMore


class CountsItsCloses(Threads):
    """Writes next to its root how many schedulers were made and closed, also in other processes. No defect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._write("made")

    def close(self) -> None:
        self._write("closed")
        super().close()

    def _write(self, event: str) -> None:
        with self.root.with_name("made_and_closed").open("a") as record:
            record.write(f"{event}\n")
