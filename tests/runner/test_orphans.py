"""Find orphans: tables of rules, and random histories of tasks in which a needed app must never be cancelled."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from airflow_provider_launch.runner import orphans
from airflow_provider_launch.runner.orphans import ABSENT, CONFIRM_S, GONE, OVER, OrphanFinder, SeenRuns
from airflow_provider_launch.schedulers.responses import ListAppResponse
from airflow_provider_launch.specs.owner import TaskKey, task_of
from airflow_provider_launch.specs.states import AppState

OWNER = {
    "dag_id": "d", "run_id": "r", "task_id": "t", "map_index": "-1", "try_number": "1", "deployment": "here",
    "policy": "cancel",
}  # fmt: skip
KEY = TaskKey("d", "r", "t")


def row(app_id: str = "a", state: AppState = AppState.RUNNING, **owner: str | None) -> ListAppResponse:
    fields = {name: value for name, value in {**OWNER, **owner}.items() if value is not None}
    return ListAppResponse(app_id, state, owner=fields)


def ended(state: str | None, *, seen: bool = True, rows: tuple[ListAppResponse, ...] = (row(),)) -> list[str]:
    """Return the apps that are orphans after two checks at which Airflow reports the same."""
    runs = SeenRuns()
    if seen:
        runs.add("d", "r")
    finder = OrphanFinder("here", runs)
    for now in (1000.0, 1000.0 + CONFIRM_S):
        apps = finder.wanted(rows)
        found = finder.check(apps, dict.fromkeys(apps.values(), state), now)
    return [orphan.app_id for orphan in found.orphans]


@pytest.mark.parametrize("state", sorted(OVER | {GONE}))
def test_an_app_whose_task_is_over_is_an_orphan_at_the_second_check(state: str) -> None:
    assert ended(state) == ["a"]


@pytest.mark.parametrize(
    "state",
    [
        None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule",
        "awaiting_input", "a state of tomorrow", ABSENT,
    ],
)  # fmt: skip
def test_every_other_state_keeps_the_app(state: str | None) -> None:
    assert ended(state) == []


@pytest.mark.parametrize(
    "owner",
    [{"run_id": "r\0"}, {"dag_id": "d\n"}, {"task_id": "\ud800"}],
    ids=["nul", "newline", "half"],
)
def test_an_owner_that_a_database_cannot_search_for_is_not_looked_up(owner: dict[str, str]) -> None:
    """Airflow would repeat the refused request, and the triggers of the process wait for that."""
    assert OrphanFinder("here").wanted([row("bad", **owner), row("good")]) == {"good": KEY}


def test_a_run_that_was_never_seen_is_not_taken_for_deleted() -> None:
    """A copy of a database has the same deployment but other runs: it must not cancel the apps of the original."""
    assert ended(GONE, seen=False) == []


@pytest.mark.parametrize(
    "owner",
    [
        {"deployment": "elsewhere"}, {"deployment": None}, {"deployment": ""}, {"policy": "leave"}, {"policy": None},
        {"dag_id": None}, {"run_id": ""}, {"map_index": "x"}, {"map_index": "9" * 30},
    ],
    ids=str,
)  # fmt: skip
def test_apps_of_others_and_apps_left_running_are_never_touched(owner: dict[str, str | None]) -> None:
    assert ended("failed", rows=(row(**owner),)) == []


def test_without_a_deployment_nothing_is_an_orphan() -> None:
    assert OrphanFinder("").wanted([row(deployment="")]) == {}


@pytest.mark.parametrize("state", [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED])
def test_an_app_that_has_ended_is_not_asked_about(state: AppState) -> None:
    assert OrphanFinder("here").wanted([row(state=state)]) == {}


def checks(*answers: tuple[float, str | None]) -> list[list[str]]:
    """Return the orphans of each check; `"no answer"` stands for a missing answer."""
    finder = OrphanFinder("here")
    found = []
    for now, state in answers:
        apps = finder.wanted([row()])
        states = {} if state == "no answer" else {KEY: state}
        found.append([orphan.app_id for orphan in finder.check(apps, states, now).orphans])
    return found


def test_one_check_cancels_nothing_and_a_mark_may_be_undone() -> None:
    assert checks((0, "failed"), (19, "failed"), (20, "running"), (40, "failed"), (59, "failed")) == [[]] * 5
    assert checks((0, "failed"), (20, "success"))[1] == ["a"]


def test_a_missing_answer_decides_nothing_and_earlier_checks_still_count() -> None:
    assert checks((0, "failed"), (20, "no answer"), (25, "failed")) == [[], [], ["a"]]


def test_the_second_check_is_due_when_the_first_app_may_be_confirmed() -> None:
    finder = OrphanFinder("here")
    found = finder.check({"a": KEY}, {KEY: "failed"}, 0)

    assert found.due_in_s == CONFIRM_S
    assert finder.check({"a": KEY}, {KEY: "failed"}, 15).due_in_s == CONFIRM_S - 15
    assert finder.check({"a": KEY}, {KEY: "running"}, 16).due_in_s is None


def test_apps_of_runs_that_were_never_seen_are_reported() -> None:
    finder = OrphanFinder("here")
    found = finder.check({"a": KEY}, {KEY: ABSENT}, 0)

    assert [orphan.app_id for orphan in found.unseen] == ["a"]
    assert found.due_in_s is None


def test_old_runs_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_MOST_RUNS", 2)
    runs = SeenRuns()
    for run in ("1", "2", "1", "3"):
        runs.add("d", run)

    assert [runs.has("d", run) for run in ("1", "2", "3")] == [True, False, True]


def test_an_owner_of_a_task_is_read_from_text() -> None:
    assert task_of(OWNER) == KEY
    assert task_of({**OWNER, "map_index": "3"}) == TaskKey("d", "r", "t", 3)


# ---- random histories ------------------------------------------------------------------------------------------------

TASKS = ["a", "b", "a_1"]


@dataclass
class Task:
    """A row of Airflow, and the app that its tries need."""

    state: str | None = None
    app: str | None = None
    apps: set[str] = field(default_factory=set)  # all running ones


@dataclass
class World:
    """One Airflow with its tasks, and an engine. An app is needed while a task that may resume by itself has it."""

    dice: random.Random
    now: float = 0.0
    tasks: dict[TaskKey, Task] = field(default_factory=dict)
    deleted_apps: set[str] = field(default_factory=set)
    owners: dict[str, tuple[TaskKey, str, str]] = field(default_factory=dict)  # app -> task, deployment, policy
    wrong: list[str] = field(default_factory=list)
    count: int = 0

    def launch(self, key: TaskKey) -> None:
        task = self.tasks[key]
        if task.app is None or task.app not in task.apps:
            self.count += 1
            task.app = f"app-{self.count}"
            self.owners[task.app] = (key, "here", "cancel")
        task.apps.add(task.app)

    def alive(self) -> list[str]:
        return sorted({app for task in self.tasks.values() for app in task.apps} | self.deleted_apps)

    def rows(self) -> list[ListAppResponse]:
        found = []
        for app in self.alive():
            key, deployment, policy = self.owners[app]
            owner = {**{name: str(value) for name, value in key._asdict().items()}}
            found.append(
                ListAppResponse(app, AppState.RUNNING, owner={**owner, "deployment": deployment, "policy": policy})
            )
        return found

    def act(self) -> None:  # noqa: C901, PLR0912 - one branch for each possible event
        """Do one random event of a task in Airflow."""
        key = self.dice.choice(sorted(self.tasks))
        task = self.tasks[key]
        match self.dice.choice(
            ["run", "defer", "retry", "mark", "clear", "reset", "lose", "upstream", "remove", "delete"]
        ):
            case "run" if task.state in (None, "scheduled", "queued", "up_for_retry", "deferred", "up_for_reschedule"):
                task.state = "running"
                self.launch(key)
            case "defer" if task.state == "running":
                task.state = "deferred"
            case "retry" if task.state == "running":
                task.state = self.dice.choice(["up_for_retry", "up_for_reschedule"])
            case "mark":
                # The kill may get lost: this is the reason for orphans.
                task.state = self.dice.choice(["success", "failed", "skipped"])
                if self.dice.random() < 0.5:
                    task.apps.clear()
            case "clear":
                # The try after a clear replaces the app.
                task.state, task.app = self.dice.choice([None, "scheduled", "queued", "restarting"]), None
            case "reset" if task.state in ("queued", "running"):
                # A scheduler died, or an older state of the database was restored: the next try adopts the app.
                task.state = self.dice.choice([None, "scheduled", "queued"])
            case "lose" if task.state == "running":
                task.state = "failed"
            case "upstream" if task.state is None and task.app is None:
                task.state = "upstream_failed"
            case "remove" if task.state is None and task.app is None:
                task.state = "removed"
            case "delete" if self.dice.random() < 0.2:
                for each in [each for each in self.tasks if each.run_id == key.run_id]:
                    self.deleted_apps |= self.tasks.pop(each).apps
                if not self.tasks:
                    self.tasks[TaskKey("d", f"{key.run_id}+", "a")] = Task()

    def is_wanted(self, app: str) -> bool:
        key, _, policy = self.owners[app]
        task = self.tasks.get(key)
        if policy != "cancel":
            return True
        return task is not None and task.app == app and task.state not in OVER

    def answer(self, keys: set[TaskKey], runs: SeenRuns) -> dict[TaskKey, str | None]:
        """Return Airflow's answer, which is sometimes late, incomplete or missing."""
        if self.dice.random() < 0.15:
            return {}
        known = {key: self.tasks[key].state if key in self.tasks else ABSENT for key in keys}
        if self.dice.random() < 0.1:
            return dict.fromkeys(keys, ABSENT)
        runs_here = {(key.dag_id, key.run_id) for key in self.tasks}
        for key, state in known.items():
            run = (key.dag_id, key.run_id)
            if state == ABSENT and run not in runs_here and runs.has(*run):
                known[key] = GONE
        return {key: state for key, state in known.items() if self.dice.random() < 0.95}

    def cancel(self, app: str) -> None:
        if self.is_wanted(app):
            self.wrong.append(app)
        self.deleted_apps.discard(app)
        for task in self.tasks.values():
            task.apps.discard(app)


def history(seed: int, *, steps: int = 60) -> tuple[list[str], list[str], int]:  # noqa: C901 - it reads from top to end
    """Return the apps cancelled wrongly, the orphans left after three quiet rounds, and the number of cancels."""
    dice = random.Random(seed)
    world = World(dice)
    for run in ("r1", "r2"):
        for task in TASKS:
            world.tasks[TaskKey("d", run, task)] = Task()
    for app in ("theirs", "stays"):
        world.owners[app] = (
            TaskKey("d", "r1", "a"),
            "there" if app == "theirs" else "here",
            "leave" if app == "stays" else "cancel",
        )
        world.deleted_apps.add(app)
    runs = SeenRuns()
    finder, number = OrphanFinder("here", runs), 0

    def round_(*, is_calm: bool = False) -> None:
        nonlocal finder, number
        if dice.random() < 0.1 and not is_calm:
            finder = OrphanFinder("here", runs)
        apps = finder.wanted(world.rows())
        states = world.answer({*apps.values()}, runs)
        if is_calm:
            here = {(key.dag_id, key.run_id) for key in world.tasks}
            absent = {key: ABSENT if (key.dag_id, key.run_id) in here else GONE for key in apps.values()}
            states = {key: world.tasks[key].state if key in world.tasks else absent[key] for key in apps.values()}
        # The task may be cleared, or run, between query and cancel.
        if dice.random() < 0.3 and not is_calm:
            world.act()
        for orphan in finder.check(apps, states, world.now).orphans:
            number += 1
            world.cancel(orphan.app_id)

    for _ in range(steps):
        world.act()
        for key in world.tasks:
            if world.tasks[key].state in ("running", "deferred"):
                runs.add(key.dag_id, key.run_id)
        # Clocks of machines jump, the clock of the process does not.
        world.now += dice.choice([0, 1, 5, 20, 300])
        if dice.random() < 0.7:
            round_()
    for _ in range(3):
        world.now += CONFIRM_S
        round_(is_calm=True)
    left = [
        app for app in world.alive()
        if app not in ("theirs", "stays") and not world.is_wanted(app)
        and (key := world.owners[app][0], key in world.tasks and world.tasks[key].state in OVER)[1]
    ]  # fmt: skip
    return world.wrong, left, number


HISTORIES = 10_000 if os.environ.get("LAUNCH_SOAK") else 300


def test_no_wanted_app_is_ended_in_any_history_and_no_orphan_is_left() -> None:
    number = 0
    for seed in range(HISTORIES):
        wrong, left, ended_ = history(seed)
        assert not wrong, f"history {seed}"
        assert not left, f"history {seed}"
        number += ended_

    assert number > HISTORIES / 2


def copied_history(seed: int, *, steps: int = 60) -> tuple[list[str], int]:
    """Return the apps of the original that a copy of its database cancels, and how many apps the copy cancels.

    Both have one deployment id and one engine. The original launches in runs that are newer than the copy.
    """
    dice = random.Random(seed)
    original, copy = World(dice), World(dice, count=1000)
    for world, run in ((original, "newer"), (copy, "copied")):
        for task in TASKS:
            world.tasks[TaskKey("d", run, task)] = Task()
    runs, number = SeenRuns(), 0
    runs.add("d", "copied")
    finder = OrphanFinder("here", runs)
    for _ in range(steps):
        original.act()
        copy.act()
        copy.now += dice.choice([0, 1, 5, 20, 300])
        apps = finder.wanted([*original.rows(), *copy.rows()])
        for orphan in finder.check(apps, copy.answer({*apps.values()}, runs), copy.now).orphans:
            number += 1
            (original if orphan.app_id in original.owners else copy).cancel(orphan.app_id)
    return original.wrong, number


def test_a_copy_of_the_database_ends_no_app_of_the_original() -> None:
    number = 0
    for seed in range(HISTORIES):
        wrong, ended_ = copied_history(seed)
        assert not wrong, f"history {seed}"
        number += ended_

    assert number > HISTORIES / 2


def test_the_histories_notice_that_unseen_runs_count_as_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeenRuns, "has", lambda *_: True)

    assert any(copied_history(seed)[0] for seed in range(300))


# Not `restarting`: only a clear sets it, and the try after a clear replaces the app.
@pytest.mark.parametrize(
    "state", ["up_for_retry", "up_for_reschedule", "deferred", "running", "queued", "scheduled", None]
)
def test_the_histories_notice_a_weaker_rule(state: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "OVER", OVER | {state})

    assert any(history(seed)[0] for seed in range(300))


def test_the_histories_notice_that_absent_was_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "OVER", OVER | {ABSENT})

    assert any(history(seed)[0] for seed in range(300))


def test_the_histories_notice_a_rule_that_keeps_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "OVER", OVER - {"failed"})

    assert any(history(seed)[1] for seed in range(300))
