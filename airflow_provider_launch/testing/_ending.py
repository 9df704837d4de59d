"""Ends of apps and their clean-up: failure, cancel, limits, delete."""

from __future__ import annotations

import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.specs.errors import UnknownAppException
from airflow_provider_launch.specs.owner import OWNER
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.specs.states import AppState, is_terminal
from airflow_provider_launch.testing._base import Apps, ContractBase, replicas, until

DEAF = "trap '' TERM; echo up; while :; do sleep 0.2; done"
"""Ignores TERM."""
POLITE = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.2; done"
"""Cleans up at TERM."""
_SLOW = "trap 'sleep 1; exit 0' TERM; echo up; while :; do sleep 0.2; done"
"""Cleans up at TERM for a second."""
_AT_ONCE_S = 1.0
UNKNOWN_IDS = ("contract-never-launched", "../../etc", "a b", "", "ünïcode", "x" * 500, "*")


def grace_above_lag(apps: Apps) -> dict[str, Any]:
    """Return the option for a grace so long that its programs still run when a report that is too early is noticed."""
    return apps.options(grace_s=2 + math.ceil(apps.lag_s))


def short_grace(apps: Apps) -> dict[str, Any]:
    """Return the option for a grace of a second; empty if the scheduler has no such option."""
    return apps.options(grace_s=1)


class EndingTests(ContractBase):
    """Failure, cancel, limits and delete."""

    # ---- gang ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("peer", ["exec sleep 300", DEAF], ids=["obedient", "deaf"])
    def test_a_failed_replica_ends_its_peers(self, apps: Apps, peer: str) -> None:
        """The other replicas would wait for the failed one for ever, and cost money."""
        script = "test $LAUNCH_REPLICA_ID = 1 || exec sleep 300; sleep 1; exit 3"
        roles = [apps.sh(peer, "peer"), apps.sh(script, "bad", num_replicas=2)]
        app_id = apps.start(*roles, **short_grace(apps))
        found = apps.end(app_id)

        assert found.state is AppState.FAILED
        assert {place: replica.state for place, replica in replicas(found).items()} == {
            ("peer", 0): AppState.CANCELLED,
            ("bad", 0): AppState.CANCELLED,
            ("bad", 1): AppState.FAILED,
        }
        apps.until_nothing_is_alive(app_id)

    def test_the_first_failed_replica_is_named(self, apps: Apps) -> None:
        """Later failures are only consequences of the first one, and would hide the cause."""
        late = "trap 'exit 66' TERM; while :; do sleep 0.2; done"
        found = apps.run(apps.sh(late, "late"), apps.sh("sleep 1; exit 3", "first"))
        named = found.to_status().first_failed_replica()

        assert named is not None
        assert (named.role, named.id, named.exit_code) == ("first", 0, 3)
        assert "first" in found.msg
        assert "3" in found.msg

    def test_an_app_succeeds_only_when_all_replicas_have(self, apps: Apps) -> None:
        """A success reported after only some replicas would start the next task too early."""
        app_id = apps.start(apps.sh("exit 0", "quick"), apps.sh("sleep 2; exit 0", "slow"))
        until(lambda: self._state_of(apps, app_id, "quick") is AppState.SUCCEEDED, apps.timeout_s, "quick succeeds")
        early = apps.scheduler.describe(app_id)

        assert early is not None
        assert early.state is AppState.RUNNING
        assert apps.end(app_id).state is AppState.SUCCEEDED

    def test_what_a_replica_left_in_the_background_ends_with_it(self, apps: Apps) -> None:
        """A forgotten background process would keep its GPU for ever."""
        app_id = apps.start(apps.sh("sleep 300 & exit 0"))
        if apps.engine.alive(app_id) is None:
            pytest.skip("the engine cannot report what is alive")

        assert apps.end(app_id).state is AppState.SUCCEEDED
        apps.until_nothing_is_alive(app_id)

    def test_an_app_stopped_from_outside_is_not_a_success(self, apps: Apps) -> None:
        """A program that exits with 0 after TERM has not done its work, so the next task must not start."""
        app_id = apps.start(apps.sh(POLITE))
        apps.until_written(app_id, "up")
        if not apps.engine.stop(app_id, "main"):
            pytest.skip("the engine does not record outside stops")
        found = apps.end(app_id)
        late = apps.another().describe(app_id)

        assert found.state is AppState.FAILED
        assert "stopped from outside" in found.msg
        assert late is not None
        assert (late.state, late.msg) == (found.state, found.msg), "a later observer"

    def test_time_limit_ends_the_app(self, apps: Apps) -> None:
        """It ends apps that no process follows any more."""
        self.needs_option(apps, "time_limit_s")
        app_id = apps.start(apps.sh("exec sleep 300"), **apps.options(time_limit_s=2))
        found = apps.end(app_id)

        assert found.state is AppState.FAILED
        assert "time limit" in found.msg
        apps.until_nothing_is_alive(app_id)

    @pytest.mark.parametrize("end", ["success", "failure", "cancel", "time limit"])
    def test_nothing_runs_once_an_end_is_reported(self, apps: Apps, end: str) -> None:
        """The next attempt starts then, and two running programs would write the same checkpoint."""
        options = grace_above_lag(apps)
        if end == "time limit":
            self.needs_option(apps, "time_limit_s")
            options |= apps.options(time_limit_s=3)
        if apps.engine.alive(apps.new_id()) is None:
            pytest.skip("the engine cannot report what is alive")
        if end == "success":
            roles = [apps.sh("sleep 300 & echo up; exit 0", num_replicas=2)]
        elif end == "failure":
            roles = [apps.sh(_SLOW, num_replicas=2), apps.sh("sleep 2; exit 3", "bad")]
        else:
            roles = [apps.sh(_SLOW, num_replicas=2), apps.sh(DEAF, "deaf")]
        app_id = apps.start(*roles, **options)
        if end == "cancel":
            for place in (("main", 0), ("main", 1), ("deaf", 0)):
                apps.until_written(app_id, "up", *place)
            apps.scheduler.cancel(app_id)
        found = apps.until_processes_end(app_id)

        assert found.state is {"success": AppState.SUCCEEDED, "cancel": AppState.CANCELLED}.get(end, AppState.FAILED)

    # ---- cancel ----------------------------------------------------------------------------------------------

    def test_cancel_ends_a_running_app(self, apps: Apps) -> None:
        """A cancelled app that continues costs money, and may write the files of its successor."""
        app_id = apps.start(apps.sh("echo up; exec sleep 300", num_replicas=2), apps.sh("exec sleep 300", "peer"))
        apps.until_written(app_id, "up")
        apps.scheduler.cancel(app_id)
        found = apps.end(app_id)

        assert found.state is AppState.CANCELLED
        assert {replica.state for replica in replicas(found).values()} == {AppState.CANCELLED}
        apps.until_nothing_is_alive(app_id)
        assert apps.lines(app_id) == ["up\n"]

    def test_cancel_right_after_schedule_ends_the_app(self, apps: Apps) -> None:
        """A task may be killed while it launches."""
        for _ in range(3):
            app_id = apps.start(apps.sh("exec sleep 300", num_replicas=2))
            apps.scheduler.cancel(app_id)

            assert apps.end(app_id).state is AppState.CANCELLED
            apps.until_nothing_is_alive(app_id)

    def test_cancel_before_schedule_does_nothing(self, apps: Apps) -> None:
        """There is no app yet to cancel."""
        app_id = apps.new_id()
        info = apps.dryrun(apps.sh("true"), app_id=app_id)
        apps.scheduler.cancel(app_id)

        assert apps.traces(app_id) == []
        assert apps.end(apps.scheduler.schedule(info)).state is AppState.SUCCEEDED

    @pytest.mark.parametrize(("code", "state"), [(0, AppState.SUCCEEDED), (4, AppState.FAILED)])
    def test_cancel_after_the_end_changes_nothing(self, apps: Apps, code: int, state: AppState) -> None:
        """A successful run must not be reported as cancelled."""
        app_id = apps.start(apps.sh(f"exit {code}"))
        apps.end(app_id)
        apps.scheduler.cancel(app_id)
        apps.another().cancel(app_id)
        time.sleep(0.5)
        found = apps.another().describe(app_id)

        assert found is not None
        assert found.state is state
        assert replicas(found)["main", 0].exit_code == code

    def test_cancel_can_be_repeated(self, apps: Apps) -> None:
        """A caller that did not get the answer repeats the cancel; several callers may cancel in parallel."""
        app_id = apps.start(apps.sh(DEAF), **short_grace(apps))
        apps.until_written(app_id, "up")
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(apps.another().cancel, app_id) for _ in range(4)]:
                done.result()
        apps.scheduler.cancel(app_id)

        assert apps.end(app_id).state is AppState.CANCELLED
        apps.scheduler.cancel(app_id)
        assert apps.end(app_id).state is AppState.CANCELLED

    def test_cancel_of_an_unknown_app_does_nothing(self, apps: Apps) -> None:
        """The engine may have removed the app; a clean-up must not fail because of that."""
        app_id = apps.new_id()
        apps.scheduler.cancel(app_id)

        assert apps.traces(app_id) == []

    def test_cancel_returns_at_once(self, apps: Apps) -> None:
        """A worker that is being killed has only a few seconds."""
        self.needs_option(apps, "grace_s")
        app_id = apps.start(apps.sh(DEAF, num_replicas=2), **apps.options(grace_s=6))
        apps.until_written(app_id, "up")
        started = time.monotonic()
        apps.scheduler.cancel(app_id)

        assert time.monotonic() - started < 3
        assert apps.end(app_id).state is AppState.CANCELLED
        assert time.monotonic() - started < 25, "much longer than the grace of its programs"

    def test_a_program_that_ignores_the_end_is_killed_after_its_grace(self, apps: Apps) -> None:
        """The program gets its full grace period, and not more."""
        self.needs_option(apps, "grace_s")
        app_id = apps.start(apps.sh(DEAF), **apps.options(grace_s=2))
        apps.until_written(app_id, "up")
        started = time.monotonic()
        apps.scheduler.cancel(app_id)
        found = apps.end(app_id)

        assert found.state is AppState.CANCELLED
        assert 1.5 <= time.monotonic() - started < 15
        apps.until_nothing_is_alive(app_id)

    def test_a_cancelled_program_can_clean_up(self, apps: Apps) -> None:
        """It saves its checkpoint at TERM; its exit code 0 does not make the app succeed."""
        app_id = apps.start(apps.sh(POLITE))
        apps.until_written(app_id, "up")
        apps.scheduler.cancel(app_id)

        assert apps.end(app_id).state is AppState.CANCELLED
        assert "bye\n" in apps.lines(app_id)

    # ---- delete and list -------------------------------------------------------------------------------------

    def test_delete_removes_an_ended_app(self, apps: Apps) -> None:
        """A deleted app is not listed and not found, by any process."""
        app_id, other = apps.start(apps.sh("true")), apps.start(apps.sh("true"))
        apps.end(app_id)
        apps.end(other)
        apps.scheduler.delete(app_id)
        until(lambda: apps.scheduler.describe(app_id) is None, _AT_ONCE_S, "the app is gone")
        until(lambda: apps.another().describe(app_id) is None, _AT_ONCE_S, "the app is gone for others")

        listed = {row.app_id for row in apps.another().list()}
        assert app_id not in listed
        assert other in listed

    def test_delete_ends_a_live_app(self, apps: Apps) -> None:
        """An app without its record would be a leak."""
        app_id = apps.start(apps.sh("echo up; exec sleep 300", num_replicas=2))
        apps.until_written(app_id, "up")
        apps.scheduler.delete(app_id)

        until(lambda: apps.another().describe(app_id) is None, apps.timeout_s, "the app is gone")
        apps.until_nothing_is_alive(app_id)

    def test_delete_can_be_repeated_and_ignores_unknown_apps(self, apps: Apps) -> None:
        """An interrupted clean-up is repeated."""
        app_id = apps.start(apps.sh("true"))
        apps.end(app_id)
        apps.scheduler.delete(app_id)
        apps.scheduler.delete(app_id)
        apps.scheduler.delete(apps.new_id())
        until(lambda: apps.scheduler.describe(app_id) is None, apps.timeout_s, "the app is gone")
        apps.scheduler.delete(app_id)

        assert apps.scheduler.describe(app_id) is None

    @pytest.mark.parametrize("script", ["exit 3", "echo up; exec sleep 300"], ids=["ended", "live"])
    def test_delete_leaves_nothing_in_the_engine(self, apps: Apps, script: str) -> None:
        """Unlisted objects cannot be found, and fill the engine."""
        app_id = apps.new_id()
        if apps.engine.left(app_id) is None:
            pytest.skip("the engine cannot report what is left")
        apps.start(apps.sh(script, num_replicas=2), apps.sh("true", "peer"), app_id=app_id)
        if "sleep" in script:
            apps.until_written(app_id, "up")
        else:
            apps.end(app_id)
        assert apps.engine.left(app_id)
        apps.scheduler.delete(app_id)

        apps.until_nothing_is_left(app_id)
        apps.until_nothing_is_alive(app_id)

    def test_what_was_taken_of_an_app_can_be_removed_at_once(self, apps: Apps) -> None:
        """Like `on_finish`: read status, result and log, then delete the app completely."""
        app_id = apps.start(apps.sh("echo taken"))
        assert apps.end(app_id).state is AppState.SUCCEEDED
        assert apps.lines(app_id) == ["taken\n"]
        if Capability.RESULT in apps.scheduler.capabilities:
            assert apps.scheduler.result(app_id) is None
        apps.scheduler.delete(app_id)

        until(lambda: apps.another().describe(app_id) is None, apps.timeout_s, "the app is gone")
        apps.until_nothing_is_left(app_id)

    def test_a_sweep_removes_what_ended_long_ago(self, apps: Apps) -> None:
        """A sweep removes old ended apps of tasks; with `live` also apps that still run."""
        dag_id = apps.new_id()
        ids = {}
        for name, script, dag in (
            ("ended", "sleep 6", dag_id),
            ("foreign", "true", f"{dag_id}x"),
            ("live", "echo up; exec sleep 300", dag_id),  # the last, because a queue may run one app at a time
        ):
            app = AppDef(name, [apps.sh(script)], metadata={OWNER: {"dag_id": dag}})
            info = apps.scheduler.submit_dryrun(app, apps.cfg, app_id=apps.new_id())
            ids[name] = apps.keep(apps.scheduler.schedule(info))
        owner = {"dag_id": dag_id}
        apps.end(ids["ended"])
        # The age is counted from the end, not from the launch.
        assert apps.another().sweep(6, owner=owner) == []
        apps.end(ids["foreign"])
        apps.until_written(ids["live"], "up")
        time.sleep(1)  # ends are rounded to whole seconds

        assert apps.another().sweep(3600, live=True, owner=owner) == []
        assert apps.another().sweep(0, owner=owner) == [ids["ended"]]
        until(lambda: apps.scheduler.describe(ids["ended"]) is None, apps.timeout_s, "the app is gone")
        assert apps.another().sweep(0, live=True, owner=owner) == [ids["live"]]
        until(lambda: apps.scheduler.describe(ids["live"]) is None, apps.timeout_s, "the app is gone")
        apps.until_nothing_is_alive(ids["live"])
        assert apps.scheduler.describe(ids["foreign"]) is not None

    def test_observers_meet_a_deletion_without_an_error(self, apps: Apps) -> None:
        """If an app is deleted during polls, observers see the app first and then None."""
        app_id = apps.start(apps.sh("true", num_replicas=3))
        apps.end(app_id)

        def watch(_: int) -> list[bool]:
            scheduler = apps.another()
            seen = [True]
            deadline = time.monotonic() + apps.timeout_s
            while seen[-5:].count(False) < 5 and time.monotonic() < deadline:
                seen.append(scheduler.describe(app_id) is not None)
            return seen

        with ThreadPoolExecutor(6) as pool:
            watched = [pool.submit(watch, number) for number in range(6)]
            time.sleep(0.3)
            apps.scheduler.delete(app_id)
            histories = [future.result() for future in watched]

        assert all(not history[-1] and sorted(history, reverse=True) == history for history in histories)

    def test_id_of_a_deleted_app_can_be_used_again(self, apps: Apps) -> None:
        """Also for another app: no data of the old app may appear."""
        app_id = apps.start(apps.sh("echo old; exit 3", num_replicas=2))
        apps.end(app_id)
        apps.scheduler.delete(app_id)
        until(lambda: apps.scheduler.describe(app_id) is None, apps.timeout_s, "the app is gone")
        found = apps.run(apps.sh("echo new"), app_id=app_id)

        assert found.state is AppState.SUCCEEDED
        assert list(replicas(found)) == [("main", 0)]
        assert apps.lines(app_id) == ["new\n"]

    def test_list_shows_each_app_once(self, apps: Apps) -> None:
        """Also apps with several roles, replicas or attempts are listed once."""
        good = apps.start(apps.sh("true", num_replicas=3), apps.sh("true", "peer"))
        bad = apps.start(apps.sh("exit 3", max_retries=self._offered_retries()))
        live = apps.start(apps.sh("exec sleep 300"))
        apps.end(good)
        apps.end(bad)
        until(lambda: self._state_of(apps, live, "main") is AppState.RUNNING, apps.timeout_s, "the last one runs")
        rows = [row for row in apps.another().list() if row.app_id in {good, bad, live}]

        assert sorted((row.app_id, row.state, row.name) for row in rows) == sorted(
            [
                (good, AppState.SUCCEEDED, "contract"),
                (bad, AppState.FAILED, "contract"),
                (live, AppState.RUNNING, "contract"),
            ]
        )

    # ---- state -----------------------------------------------------------------------------------------------

    def test_describe_of_an_unknown_app_raises_nothing(self, params: dict[str, Any]) -> None:
        """Followers end at None. The other tests take such an error for None, so that it is one failure."""
        with contextlib.closing(self.create(**params)) as scheduler:
            for app_id in UNKNOWN_IDS:
                with contextlib.suppress(UnknownAppException):
                    scheduler.describe(app_id)
                    continue
                pytest.fail(
                    f"`describe` raises UnknownAppException for {app_id[:40]!r}, an app that does not exist; return "
                    f"None, also for the ids of `describe_many`",
                    pytrace=False,
                )

    @pytest.mark.parametrize("app_id", UNKNOWN_IDS)
    def test_describe_of_an_unknown_app_is_none(self, apps: Apps, app_id: str) -> None:
        """None means that the app does not exist. Handles are free texts and may contain odd characters."""
        assert apps.scheduler.describe(app_id) is None
        assert not apps.scheduler.exists(app_id)

    def test_a_path_that_leads_to_an_app_is_not_its_name(self, apps: Apps) -> None:
        """A handle must not give access to other apps by relative paths."""
        app_id = apps.start(apps.sh("sleep 60"))
        for alias in (f"./{app_id}", f"{app_id}/", f"x/../{app_id}", f"../apps/{app_id}", f"{app_id}\n", f" {app_id}"):
            assert apps.scheduler.describe(alias) is None, alias

    def test_describe_many_separates_known_and_unknown_apps(self, apps: Apps) -> None:
        """A missing app must not hide the others."""
        known, unknown = apps.start(apps.sh("exit 3")), apps.new_id()
        apps.end(known)
        alone = apps.another().describe(known)
        found = apps.another().describe_many([unknown, known])
        together = found[known]

        assert set(found) == {known, unknown}
        assert found[unknown] is None
        assert alone is not None
        assert together is not None
        assert together.to_status() == alone.to_status()

    @pytest.mark.parametrize("script", ["exit 0", "exit 3", "exec sleep 300"])
    def test_a_terminal_state_is_final(self, apps: Apps, script: str) -> None:
        """Callers act on an end, so it never changes. All observers see the same end."""
        app_id = apps.start(apps.sh("sleep 0.5", "peer"), apps.sh(f"sleep 1; {script}"))
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(apps.histories, app_id)
            if "sleep" in script:
                time.sleep(1.5)
                apps.another().cancel(app_id)
            histories = future.result()
        ends = [[state for state in history if is_terminal(state)] for history in histories]

        assert all(len(end) == 1 for end in ends), histories
        assert len({end[0] for end in ends}) == 1, histories
        assert all(sorted(history) == history for history in histories), histories

    def test_closing_a_scheduler_leaves_its_apps_alone(self, apps: Apps) -> None:
        """The launching worker may end long before the app; closing twice is harmless."""
        scheduler = apps.another()
        info = scheduler.submit_dryrun(
            AppDef("contract", [apps.sh("sleep 1; echo done")]), apps.cfg, app_id=apps.new_id()
        )
        app_id = scheduler.schedule(info)
        scheduler.close()
        scheduler.close()

        assert apps.end(app_id, apps.another()).state is AppState.SUCCEEDED
        assert apps.lines(app_id) == ["done\n"]

    # ---- helpers ---------------------------------------------------------------------------------------------

    def _offered_retries(self) -> int:
        return 1 if Capability.APPLICATION_RETRY in self.capabilities else 0

    @staticmethod
    def _state_of(apps: Apps, app_id: str, role: str) -> AppState | None:
        found = apps.scheduler.describe(app_id)
        replica = replicas(found).get((role, 0)) if found else None
        return replica.state if replica else None
