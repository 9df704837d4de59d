"""An app id belongs to one app, which is launched once and visible to every process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import AppConflictError, SchedulerRejectedError
from airflow_provider_launch.specs.handles import make_app_handle
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.sentinels import AppHandle
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.testing._base import Apps, ContractBase, MakeProcess, until
from airflow_provider_launch.testing._process import OtherProcess

MOMENTS = (0.05, 0.3, 0.6, 0.9, 1.2)
"""When a launcher is killed, as a fraction of the time of a start: before, during and after its work."""


class IdentityTests(ContractBase):
    """Ids, adoption, conflicts, and calls from other processes."""

    def test_apps_without_an_id_get_different_ones(self, apps: Apps) -> None:
        """The same app is launched every night."""
        app = AppDef("contract", [apps.sh("true")])
        one, other = (apps.keep(apps.scheduler.schedule(apps.scheduler.submit_dryrun(app, apps.cfg))) for _ in range(2))

        assert one != other
        assert {apps.end(one).state, apps.end(other).state} == {AppState.SUCCEEDED}

    @pytest.mark.parametrize("app_id", ["../x", "a b", "x/y", "x" * 500, "naïve", "-x", "x\n"])
    def test_id_that_the_engine_cannot_take_is_refused(self, apps: Apps, app_id: str) -> None:
        """A changed id cannot be found again, and handles, files and labels do not allow these characters."""
        assert "app id" in apps.refusal(apps.sh("true"), app_id=app_id), f"app id {app_id!r} is to be refused by name"

    def test_id_of_the_operator_is_taken(self, apps: Apps) -> None:
        """The operator makes ids of up to 39 characters: lower case letters, digits and `-`."""
        app_id = apps.new_id().ljust(39, "0")
        assert apps.start(apps.sh("echo $LAUNCH_REPLICA_ID", "trainer", num_replicas=2), app_id=app_id) == app_id

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert [apps.lines(app_id, "trainer", k) for k in range(2)] == [["0\n"], ["1\n"]]

    def test_schedule_twice_starts_once(self, apps: Apps) -> None:
        """A worker that did not get the answer repeats the call, and so does the next worker."""
        self.needs(Capability.ADOPT)
        role = apps.sh("echo run; sleep 1", num_replicas=2)
        info = apps.dryrun(role, app_id=apps.new_id())
        app_id = apps.scheduler.schedule(info)

        assert apps.scheduler.schedule(info) == app_id
        assert apps.start(role, app_id=app_id) == app_id
        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.expect_starts(app_id, 2)
        assert [apps.lines(app_id, k=k) for k in range(2)] == [["run\n"]] * 2

    def test_racing_threads_start_one_app(self, apps: Apps) -> None:
        """Two tries of one task may be alive at the same time."""
        self.needs(Capability.ADOPT)
        role, app_id = apps.sh("echo run; sleep 1", num_replicas=2), apps.new_id()
        infos = [
            (scheduler, scheduler.submit_dryrun(AppDef("contract", [role]), apps.cfg, app_id=app_id))
            for scheduler in [apps.another() for _ in range(8)]
        ]
        self._race([lambda pair=pair: pair[0].schedule(pair[1]) for pair in infos])  # type: ignore[misc]

        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.expect_starts(app_id, 2)
        assert [apps.lines(app_id, k=k) for k in range(2)] == [["run\n"]] * 2
        assert [row.app_id for row in apps.scheduler.list()].count(app_id) == 1

    def test_racing_processes_start_one_app(self, apps: Apps, other_process: OtherProcess) -> None:
        """A lock in this process does not stop another worker."""
        self.needs(Capability.ADOPT)
        role = apps.sh("echo run; sleep 1", num_replicas=2)
        document = app_to_dict(AppDef("contract", [role]))
        other_process.call("list")  # it is up
        for _ in range(3):
            app_id = apps.new_id()
            info = apps.dryrun(role, app_id=app_id)
            self._race(
                [
                    lambda info=info: apps.scheduler.schedule(info),  # type: ignore[misc]
                    lambda app_id=app_id: other_process.call("schedule", app=document, cfg=apps.cfg, app_id=app_id),  # type: ignore[misc]
                ]
            )

            assert apps.end(app_id).state is AppState.SUCCEEDED
            apps.expect_starts(app_id, 2)
            assert [apps.lines(app_id, k=k) for k in range(2)] == [["run\n"]] * 2

    def test_same_id_with_another_app_is_a_conflict(self, apps: Apps) -> None:
        """Following the app of another user would return its result as ours."""
        self.needs(Capability.ADOPT)
        app_id = apps.start(apps.sh("echo mine; sleep 1"))
        others: list[list[Role]] = [
            [apps.sh("echo other; sleep 1")],
            [apps.sh("echo mine; sleep 1", env={"A": "1"})],
            [apps.sh("echo mine; sleep 1", num_replicas=2)],
            [apps.sh("echo mine; sleep 1"), apps.sh("true", "more")],
        ]
        for roles in others:
            with pytest.raises(AppConflictError, match=app_id):
                apps.another().schedule(apps.dryrun(*roles, app_id=app_id))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.expect_starts(app_id, 1)
        assert apps.lines(app_id) == ["mine\n"]

    def test_same_id_with_another_option_is_a_conflict(self, apps: Apps) -> None:
        """The requested launch differs from the running one."""
        self.needs(Capability.ADOPT)
        named = [name for name in ("time_limit_s", "grace_s") if self.option_names.get(name, name) is not None]
        if not named:
            pytest.skip("`option_names` declares that there is neither an option 'time_limit_s' nor 'grace_s'")
        self.needs_option(apps, named[0])
        one = apps.options(**{named[0]: 100})
        other = apps.options(**{named[0]: 200})
        app_id = apps.scheduler.schedule(apps.dryrun(apps.sh("true"), **one))
        with pytest.raises(AppConflictError, match=app_id):
            apps.scheduler.schedule(apps.dryrun(apps.sh("true"), app_id=app_id, **other))

        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.expect_starts(app_id, 1)

    def test_what_the_launcher_injects_is_no_conflict(self, apps: Apps) -> None:
        """Workers have different sessions and still find each other's app."""
        self.needs(Capability.ADOPT)
        app_id = apps.start(apps.sh("echo run", env={"TORCHX_INTERNAL_SESSION_ID": "one"}))

        assert apps.start(apps.sh("echo run", env={"TORCHX_INTERNAL_SESSION_ID": "two"}), app_id=app_id) == app_id
        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.expect_starts(app_id, 1)

    def test_an_app_that_is_deleted_while_it_is_submitted_stays_deleted(self, apps: Apps) -> None:
        """If a launcher treats this as an outage, it submits the app again although another user deleted it."""
        for _ in range(3):
            app_id = apps.new_id()
            info = apps.dryrun(apps.sh("exec sleep 300", num_replicas=2), app_id=app_id)
            is_submitted = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                deletion = pool.submit(self._delete_as_soon_as_it_exists, apps, app_id, is_submitted)
                try:
                    apps.scheduler.schedule(info)
                except SchedulerRejectedError as error:
                    assert "deleted" in str(error), error  # noqa: PT017 - it need not be raised: the deletion may be late
                finally:
                    is_submitted.set()
                deletion.result()

            until(lambda app_id=app_id: apps.scheduler.describe(app_id) is None, apps.timeout_s, f"{app_id} is gone")  # type: ignore[misc]
            apps.until_nothing_is_alive(app_id)

    @pytest.mark.parametrize(("code", "state"), [(0, AppState.SUCCEEDED), (3, AppState.FAILED)])
    def test_schedule_after_the_end_runs_nothing_again(self, apps: Apps, code: int, state: AppState) -> None:
        """The answer to a launch may come late; the next try of the task then uses the existing end."""
        self.needs(Capability.ADOPT)
        role = apps.sh(f"echo run; exit {code}")
        app_id = apps.start(role)
        apps.end(app_id)

        assert apps.start(role, app_id=app_id) == app_id
        found = apps.another().describe(app_id)
        assert found is not None
        assert found.state is state
        apps.expect_starts(app_id, 1)
        assert apps.lines(app_id) == ["run\n"]

    def test_schedule_after_cancel_runs_nothing_again(self, apps: Apps) -> None:
        """A late repeated launch must not restart a cancelled app."""
        self.needs(Capability.ADOPT)
        role = apps.sh("echo up; exec sleep 300")
        app_id = apps.start(role)
        apps.until_written(app_id, "up")
        apps.scheduler.cancel(app_id)
        apps.end(app_id)
        apps.start(role, app_id=app_id)

        assert apps.end(app_id).state is AppState.CANCELLED
        apps.until_nothing_is_alive(app_id)
        apps.expect_starts(app_id, 1)

    # ---- other processes -------------------------------------------------------------------------------------

    def test_another_process_sees_the_app(self, apps: Apps, other_process: OtherProcess) -> None:
        """The worker launches and the triggerer follows, so no state may be in the worker's memory."""
        app_id = apps.start(apps.sh("echo up; exec sleep 300"), apps.sh("exec sleep 300", "peer"))
        apps.until_running(app_id)

        for seen in (
            other_process.call("describe", app_id=app_id),
            other_process.call("status", handle=self._handle(apps, app_id)),
        ):
            assert seen is not None
            assert seen["state"] == "RUNNING"
            assert [role["role"] for role in seen["roles"]] == ["main", "peer"]
        assert app_id in other_process.call("list")

    def test_another_process_follows_the_app_to_its_end(self, apps: Apps, other_process: OtherProcess) -> None:
        """The app ends even if no other process polls it."""
        role = apps.sh("echo one; sleep 1; echo two; exit 4")
        scheduler = apps.another()
        info = scheduler.submit_dryrun(AppDef("contract", [role]), apps.cfg, app_id=apps.new_id())
        app_id = scheduler.schedule(info)
        scheduler.close()
        handle = self._handle(apps, app_id)
        waited = other_process.call("wait", handle=handle, timeout_s=apps.timeout_s)
        seen = other_process.call("describe", app_id=app_id)

        for found in (waited, seen):
            assert found is not None, "there is no such app"
            assert found["state"] == "FAILED"
            assert found["roles"][0]["replicas"][0]["exit_code"] == 4
        assert other_process.call("log_iter", app_id=app_id, role="main") == ["one\n", "two\n"]
        assert other_process.call("log_lines", handle=handle, role="main") == ["one\n", "two\n"]

    def test_another_process_cancels_the_app(self, apps: Apps, other_process: OtherProcess) -> None:
        """The launching process may be dead, so the handle in its log must suffice."""
        app_id = apps.start(apps.sh("echo up; exec sleep 300"))
        apps.until_written(app_id, "up")
        other_process.call("stop", handle=self._handle(apps, app_id))

        assert apps.end(app_id).state is AppState.CANCELLED
        apps.until_nothing_is_alive(app_id)

    def test_an_app_outlives_the_process_that_launched_it(self, apps: Apps, other_process: OtherProcess) -> None:
        """A worker may be killed at any moment; hours of work must not be lost."""
        app_id = apps.new_id()
        document = app_to_dict(AppDef("contract", [apps.sh("sleep 2; echo survived")]))
        other_process.call("schedule", app=document, cfg=apps.cfg, app_id=app_id)
        other_process.kill()

        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert apps.lines(app_id) == ["survived\n"]

    # ---- killed launchers ------------------------------------------------------------------------------------

    def test_a_launcher_killed_while_it_schedules_is_made_up_for(self, apps: Apps, make_process: MakeProcess) -> None:
        """At any step: the next launcher continues, and no replica is started twice."""
        self.needs(Capability.ADOPT)
        self._needs_apps_that_outlive_their_launcher()
        role = apps.sh("echo run; sleep 0.5", num_replicas=2)
        for process, delay_s in self._launchers_to_kill(apps, make_process):
            app_id = apps.new_id()
            self._schedule_and_die(process, role, apps, app_id, delay_s)
            apps.start(role, app_id=app_id)

            assert apps.end(app_id).state is AppState.SUCCEEDED
            apps.expect_starts(app_id, 2)
            assert [apps.lines(app_id, k=k) for k in range(2)] == [["run\n"]] * 2

    def test_what_a_killed_launcher_left_can_be_cancelled(self, apps: Apps, make_process: MakeProcess) -> None:
        """A task may be cancelled while its worker dies; a partly started app must not continue either."""
        self._needs_apps_that_outlive_their_launcher()
        role = apps.sh("exec sleep 300", num_replicas=2)
        for process, delay_s in self._launchers_to_kill(apps, make_process):
            app_id = apps.new_id()
            self._schedule_and_die(process, role, apps, app_id, delay_s)
            was_there = apps.scheduler.describe(app_id) is not None
            apps.scheduler.cancel(app_id)

            # Never started, or ended by the cancel.
            if apps.scheduler.describe(app_id) is not None:
                if not was_there:
                    # The engine served the last request of the killed launcher after the cancel, which found no app.
                    apps.scheduler.cancel(app_id)
                assert apps.end(app_id).state is AppState.CANCELLED
            apps.until_nothing_is_alive(app_id)

    # ---- threads ---------------------------------------------------------------------------------------------

    def test_one_scheduler_serves_several_threads(self, apps: Apps) -> None:
        """A triggerer calls it from a pool of threads."""
        ids = [apps.start(apps.sh(f"echo {number}; exit {number}")) for number in range(4)]
        for app_id in ids:
            apps.end(app_id)

        def describe(number: int) -> tuple[object, list[str], bool]:
            app_id = ids[number % 4]
            found = apps.scheduler.describe(app_id)
            assert found is not None
            listed = app_id in {row.app_id for row in apps.scheduler.list()}
            return found.roles_statuses[0].replicas[0].exit_code, apps.lines(app_id), listed

        with ThreadPoolExecutor(8) as pool:
            seen = [*pool.map(describe, range(40))]
        assert seen == [(number % 4, [f"{number % 4}\n"], True) for number in range(40)]

    # ---- helpers ---------------------------------------------------------------------------------------------

    @staticmethod
    def _handle(apps: Apps, app_id: str) -> AppHandle:
        return make_app_handle(apps.scheduler.backend, apps.scheduler.session_name, app_id)

    def _needs_apps_that_outlive_their_launcher(self) -> None:
        if "test_an_app_outlives_the_process_that_launched_it" in self.xfail:
            pytest.skip("apps do not outlive their launcher here")

    @staticmethod
    def _launchers_to_kill(apps: Apps, make_process: MakeProcess) -> list[tuple[OtherProcess, float]]:
        """Return processes, and the seconds after which to kill each.

        The duration of a start depends on engine and machine, so one start is timed.
        """
        timed, *processes = [make_process() for _ in range(len(MOMENTS) + 1)]
        timed.call("list")
        document = app_to_dict(AppDef("contract", [apps.sh("true")]))
        started = time.monotonic()
        timed.call("schedule", app=document, cfg=apps.cfg, app_id=apps.new_id())
        took_s = time.monotonic() - started
        return [(process, part * took_s) for process, part in zip(processes, MOMENTS, strict=True)]

    @staticmethod
    def _schedule_and_die(process: OtherProcess, role: Role, apps: Apps, app_id: str, delay_s: float) -> None:
        process.call("list")  # it is up
        document = app_to_dict(AppDef("contract", [role]))
        process.send("schedule", app=document, cfg=apps.cfg, app_id=app_id)
        time.sleep(delay_s)
        process.kill()

    @staticmethod
    def _delete_as_soon_as_it_exists(apps: Apps, app_id: str, is_submitted: threading.Event) -> None:
        scheduler = apps.another()
        while not scheduler.exists(app_id) and not is_submitted.wait(0.001):
            pass
        scheduler.delete(app_id)

    @staticmethod
    def _race(calls: list[Callable[[], object]]) -> None:
        gate = threading.Barrier(len(calls))

        def call(function: Callable[[], object]) -> None:
            gate.wait()
            function()

        with ThreadPoolExecutor(len(calls)) as pool:
            for done in [pool.submit(call, function) for function in calls]:
                done.result()
