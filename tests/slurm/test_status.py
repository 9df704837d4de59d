"""The state of an app from its record and the jobs of its submissions."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.schedulers.slurm.records import (
    Attempt,
    Job,
    Record,
    parse_accounts,
    parse_attempts,
    parse_observation,
)
from airflow_provider_launch.schedulers.slurm.request import build_request
from airflow_provider_launch.schedulers.slurm.status import (
    ENDS,
    LIVE,
    Standing,
    accounted,
    response_from,
    standing,
    until_stopped,
)
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role

NOW = 1000
SETTLE_S = 10


def job(state: str, nonce: str = "n1", reason: str = "None", end: int | None = None, **fields: Any) -> Job:
    return Job("7", state, reason, fields.pop("start", None), end, "hash:instance", nonce, **fields)


def state_of(*jobs: Job, **record: Any) -> tuple[AppState, str, str]:
    found = standing(Record("a", "1", **record), jobs, NOW, SETTLE_S)
    return found.state, found.reason, found.claim


CLAIMED: dict[str, Any] = {"claim": "n1", "alive": NOW - 5.0}
DEAD: dict[str, Any] = {"claim": "n1", "alive": NOW - 500.0}


@pytest.mark.parametrize("state", LIVE)
def test_a_job_that_lives_is_no_end(state) -> None:
    assert state_of(job(state), **CLAIMED) == (LIVE[state], "", "")
    assert state_of(job(state), submitted=NOW - 5.0)[0] in {AppState.PENDING, AppState.SUBMITTED}


@pytest.mark.parametrize("state", ENDS)
def test_an_end_that_only_slurm_knows_counts_when_the_record_had_its_time(state) -> None:
    ended = AppState.CANCELLED if state == "CANCELLED" else AppState.FAILED

    assert state_of(job(state, end=NOW - 2), **CLAIMED)[0] is AppState.RUNNING
    assert state_of(job(state, end=NOW - 20), **CLAIMED, terminated=True) == (ended, state, "")
    # It never began; from now on it cannot.
    assert state_of(job(state, end=NOW - 20)) == (ended, state, "ended")


@pytest.mark.parametrize(
    ("jobs", "record", "expected"),
    [
        ([], {"submitted": NOW - 5.0}, (AppState.SUBMITTED, "", "")),
        ([job("PENDING", reason="JobHeldUser")], {}, (AppState.SUBMITTED, "", "")),
        ([], {"submitted": NOW - 500.0}, (AppState.FAILED, "unstarted", "unstarted")),
        ([job("CANCELLED", reason="JobHeldUser", end=1)], {"submitted": NOW - 5.0}, (AppState.SUBMITTED, "", "")),
        ([], {"cancelled": True}, (AppState.CANCELLED, "cancel", "cancel")),
        ([job("RUNNING")], {"cancelled": True, "claim": "cancel"}, (AppState.CANCELLED, "cancel", "")),
        # Slurm has lost it, and used its number again for another submission.
        ([job("RUNNING", nonce="n2")], CLAIMED, (AppState.RUNNING, "", "")),
        # A controller that has crashed knows it as it was before it was released.
        ([job("PENDING", reason="JobHeldUser")], CLAIMED, (AppState.RUNNING, "", "")),
        ([job("PENDING", reason="JobHeldUser")], DEAD, (AppState.FAILED, "lost", "")),
        ([job("COMPLETED", nonce="n2", end=1)], DEAD, (AppState.FAILED, "lost", "")),
        ([], {**DEAD, "cancelled": True}, (AppState.CANCELLED, "lost", "")),
        ([job("RUNNING")], {**CLAIMED, "end": "FAILED,exit,1.5"}, (AppState.FAILED, "exit", "")),
        ([job("CANCELLED", end=1)], CLAIMED, (AppState.FAILED, "dropped", "")),
        ([job("CANCELLED", end=1, has_nodes=True)], {}, (AppState.FAILED, "dropped", "ended")),
        ([job("NEW_WORD")], CLAIMED, (AppState.UNKNOWN, "", "")),
    ],
)
def test_states(jobs, record, expected) -> None:
    assert state_of(*jobs, **record) == expected


@pytest.mark.parametrize(
    ("word", "codes", "age_s", "state"),
    [
        ("NODE_FAIL", [None, 143], 5, AppState.RUNNING),
        ("NodeDown", [None], 5, AppState.RUNNING),
        ("lost", [None], 5, AppState.RUNNING),
        ("NODE_FAIL", [143, 143], 5, AppState.FAILED),
        # The node is dead, and its replicas with it.
        ("NODE_FAIL", [None, 143], 30, AppState.FAILED),
        # srun has seen the end of those which have no record of it.
        ("exit", [None, 3], 5, AppState.FAILED),
        ("NODE_FAIL", [], 5, AppState.FAILED),
    ],
)
def test_an_end_counts_only_when_replicas_on_lost_nodes_have_stopped(word, codes, age_s, state) -> None:
    request = build_request(AppDef("demo", [Role("main", "", entrypoint="true", num_replicas=3)]), SlurmOpts(), "a", {})
    attempts = [Attempt(0, 0, k, 0, "n", 1.0, code=code) for k, code in enumerate(codes)]
    record = Record("a", "1", claim="n1", end=f"FAILED,{word},{NOW - age_s}")
    found = until_stopped(standing(record, [], NOW, SETTLE_S), record, request, attempts, NOW)

    assert found.state is state
    assert ("1 of its replicas" in found.msg) == (state is AppState.RUNNING)


@pytest.mark.parametrize(
    ("rows", "record", "expected"),
    [
        (["a|TIMEOUT|launch:hash:instance:n1"], CLAIMED, (AppState.FAILED, "TIMEOUT")),
        (["a|CANCELLED by 0|launch:hash:instance:n1 note"], CLAIMED, (AppState.CANCELLED, "CANCELLED")),
        # The job of another submission, of another app with the same id, and of another program.
        (["a|TIMEOUT|launch:hash:instance:n2"], CLAIMED, (AppState.FAILED, "lost")),
        (["a|TIMEOUT|launch:hash:other:n1"], CLAIMED, (AppState.FAILED, "lost")),
        (["a|TIMEOUT|", "a|TIMEOUT|nightly"], CLAIMED, (AppState.FAILED, "lost")),
        # Without a claim each job of the app counts, first the one that was not cancelled.
        (
            ["a|CANCELLED by 0|launch:hash:instance:n1", "a|OUT_OF_MEMORY|launch:hash:instance:n2"],
            {},
            (AppState.FAILED, "OUT_OF_MEMORY"),
        ),
        (["a|RUNNING|launch:hash:instance:n1"], CLAIMED, (AppState.FAILED, "lost")),
        (["a|TIMEOUT|launch:hash:instance:n1"], {"cancelled": True}, (AppState.FAILED, "lost")),
    ],
)
def test_the_end_of_a_forgotten_job_is_that_of_its_own_account(rows, record, expected) -> None:
    """Other jobs of the cluster may have the same name."""
    lost = Standing(AppState.FAILED, "lost")
    found = accounted(lost, Record("a", "1", **record), "hash:instance", parse_accounts("\n".join(rows)))

    assert (found.state, found.reason) == expected


def test_a_waiting_app_shows_why_and_until_when() -> None:
    found = standing(Record("a", "1"), [job("PENDING", reason="QOSMaxJobs", start=1_700_000_000)], NOW, SETTLE_S)

    assert found.msg == "waits in the queue: QOSMaxJobs; expected to start at 2023-11-14 22:13 UTC"


@pytest.mark.parametrize(
    ("reason", "is_stuck"),
    [
        ("Resources", False),
        ("Priority", False),
        ("QOSMaxJobsPerUserLimit", False),  # passes when another job ends
        ("AssocGrpCpuLimit", False),
        ("PartitionTimeLimit", True),
        ("BadConstraints", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMaxNodePerJobLimit", True),
    ],
)
@pytest.mark.parametrize("record", [{}, CLAIMED], ids=["submitted", "claimed"])
def test_a_job_that_only_a_user_can_fix_is_stuck(record, reason, is_stuck) -> None:
    assert standing(Record("a", "1", **record), [job("PENDING", reason=reason)], NOW, SETTLE_S).is_stuck is is_stuck


def test_the_output_of_the_scripts_is_parsed() -> None:
    text = (
        "now 1700000100\n"
        "5|5+0|RUNNING|None|1700000000|N/A|n[1-2]|launch:abc:inst:nonce a comment|with: all\n"
        "9|9|PENDING|Priority|N/A|N/A||launch:torn\n"
        "files\n"
        "x/id\t12\t6.5\tf\t\0x/claim\t13\t7.5\tl\tnonce\0x/status\t14\t8.5\td\t\0"
        "x/end\t15\t9.5\tl\tFAILED,exit,9\0torn/claim\t16\t1.0\tl\tn\0"
    )
    found = parse_observation(text)

    assert found.now == 1_700_000_100
    assert found.jobs == [Job("5", "RUNNING", "None", 1_700_000_000, None, "abc:inst", "nonce", has_nodes=True)]
    record = Record("x", "12 6.5", claim="nonce", end="FAILED,exit,9", submitted=6.5, changed="14 8.5")
    assert found.records == {"x": record}


@pytest.mark.parametrize(
    "line",
    [
        "|launch:",
        "now 5|launch:a:b:c",
        "x|launch:a:b:c|",
        "²|²|RUNNING|None|1|1||launch:a:b:c",
        f"5|5|RUNNING|None|{'9' * 5000}|²||launch:a:b:c",
    ],
)
def test_a_comment_of_another_job_can_be_any_text(line) -> None:
    found = parse_observation(f"now 1700000100\n{line}\nfiles\nx/id\t1\t6.5\tf\t\0")

    assert (found.now, set(found.records)) == (1_700_000_100, {"x"})
    assert all(job.start is None for job in found.jobs)


@pytest.mark.parametrize(
    ("name", "kind", "target", "is_damaged"),
    [
        ("end", "l", "FAILED,exit,1.5", False),
        ("end", "l", "CANCELLED,cancel,1700000100", False),
        ("end", "f", "", True),
        ("end", "p", "", True),
        ("end", "l", "FAILED,exit", True),
        ("end", "l", "FAILED,exit,nan", True),
        ("end", "l", "WHAT,exit,1", True),
        ("end", "l", "FAILED,exit,1\nx/end\t1\t1\tl\tx", True),
        ("end", "l", "FAILED,exit," + "9" * 5000, True),
        ("claim", "d", "", True),
        ("claim", "l", "a\tb", True),
        ("cancel", "p", "", False),
    ],
)
def test_a_record_that_no_script_has_written_is_damage_of_its_app(name, kind, target, is_damaged) -> None:
    entries = ["x/id\t1\t6.5\tf\t", f"x/{name}\t2\t7.5\t{kind}\t{target}", "y/id\t3\t-1e300\tf\t"]
    found = parse_observation("now 1\nfiles\n" + "\0".join(entries) + "\0")

    assert set(found.records) == {"x", "y"}
    assert bool(found.records["x"].damage) == is_damaged
    assert (found.records["y"].damage, found.records["y"].submitted) == ("", 0.0)


@pytest.mark.parametrize(
    "name",
    [
        "start,0,0,0,0,h,nan",
        "start,0,0,0,0,h,1e999",
        "start,²,0,0,0,h,1",
        "start,0,0",
        "start,0,0,0,0,h,1,2",
        "exit,0,0,0,0,1,0,inf",
        "exit,0,0,0,0,9999999999,0,1",
        f"exit,{'9' * 5000},0,0,0,1,0,1",
        "exit,0,0,0,0,1,0,1\n",
    ],
)
def test_a_name_that_no_script_has_written_is_no_attempt(name) -> None:
    assert parse_attempts([name, "start,0,0,0,0,h,1"]) == [Attempt(0, 0, 0, 0, "h", 1.0)]


def test_attempts_are_read_from_names() -> None:
    names = [
        "term,None,1.0",
        "failed,0",
        "start,0,1,2,0,node-1,10.5",
        "exit,0,1,2,0,143,1,20.5",
        "start,1,1,2,0,n,30.5",
    ]

    assert parse_attempts(names) == [
        Attempt(0, 1, 2, 0, "node-1", 10.5, 143, stopped=True, ended=20.5),
        Attempt(1, 1, 2, 0, "n", 30.5),
    ]


def replicas_of(found: Standing, *attempts: Attempt) -> dict[tuple[str, int], tuple[AppState, int | None]]:
    role = Role("main", "", entrypoint="true", num_replicas=3, resource=Resource(1, 0, 1))
    request = build_request(AppDef("demo", [role]), SlurmOpts(), "demo-1", {})
    response = response_from(Record("demo-1"), found, request, attempts)
    return {one.id: (one.state, one.exit_code) for one in response.roles_statuses[0].replicas}


def test_a_replica_without_a_record_is_the_cause_only_if_no_other_is() -> None:
    failed = Standing(AppState.FAILED, "exit")
    lost = Attempt(0, 0, 0, 0, started=1.0)
    stopped = Attempt(0, 0, 1, 0, started=1.0, code=143, stopped=True, ended=2.0)
    cause = Attempt(0, 0, 2, 0, started=1.0, code=3, ended=1.5)

    assert replicas_of(failed, lost, stopped) == {
        0: (AppState.FAILED, 137),
        1: (AppState.CANCELLED, 143),
        2: (AppState.CANCELLED, None),
    }
    assert replicas_of(failed, lost, stopped, cause)[0] == (AppState.CANCELLED, 137)
    assert replicas_of(Standing(AppState.RUNNING), lost)[0] == (AppState.RUNNING, None)
