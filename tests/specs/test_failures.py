"""Which replica made an app fail, although others may have ended before it."""

from __future__ import annotations

import json

import pytest

from airflow_provider_launch.specs import failures
from airflow_provider_launch.specs.failures import in_order_of_failure, lost_its_peers
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import AppStatus, ReplicaStatus, RoleStatus

PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5123"


def wrote(message: str, at: float | str) -> str:
    return json.dumps({"message": {"message": message, "extraInfo": {"timestamp": at}}})


def replica(k: int, *, reply: str = "", code: int = 1, end: int | None = None, state=AppState.FAILED) -> ReplicaStatus:
    extra = {"structured_error_msg": reply} if reply else {}
    return ReplicaStatus(k, state, "t", "", exit_code=code, end_time=end, **extra)


STOPPED = AppState.CANCELLED


@pytest.mark.parametrize(
    ("replicas", "msg", "lines", "order"),
    [
        # The cause needs 2.5 s to end; its peers see the closed connection and exit before it.
        ([replica(0, reply=wrote(PEER, 12), end=13), replica(1, reply=wrote("x", "11"), end=15)], "", {}, [1, 0]),
        # It was stopped by the launcher meanwhile.
        (
            [replica(0, reply=wrote(PEER, 12), end=13),
             replica(1, reply=wrote("ValueError", 11), code=143, end=15, state=STOPPED)],
            "t/0 failed: exit code 1", {}, [1, 0],
        ),
        # Clocks of hosts differ: the text of the error counts more.
        ([replica(0, reply=wrote(PEER, 9)), replica(1, reply=wrote("ValueError", 11))], "", {}, [1, 0]),
        # A killed process writes no file.
        ([replica(0, reply=wrote("Timeout", 12), end=13), replica(1, code=137, end=11)], "", {}, [1, 0]),
        ([replica(0, reply=wrote("ValueError", 8), end=13), replica(1, code=137, end=11)], "", {}, [0, 1]),
        # Without files: the message, else the first exit.
        ([replica(0, end=13), replica(1, end=13)], "t/1 failed: exit code 1", {}, [1, 0]),
        ([replica(0, end=13), replica(1, end=11)], "", {}, [1, 0]),
        ([replica(0, end=11), replica(1, end=13)], "", {"t/0": [PEER], "t/1": ["ValueError: x"]}, [1, 0]),
        # A replica that was only stopped is not a cause.
        ([replica(0, end=11, code=143, state=STOPPED), replica(1, end=13)], "", {}, [1]),
        # torchrun writes that it was stopped, or that its workers lost the failed ones.
        (
            [replica(0, reply=wrote("SignalException: Process 7 got signal: 15", 14), code=137, end=15, state=STOPPED),
             replica(1, end=13), replica(2, reply=wrote(PEER, 12), code=137, end=15, state=STOPPED)],
            "", {}, [1],
        ),
        ([replica(0, reply="not json", end=13), replica(1, reply='{"a": 1}', end=11)], "", {}, [1, 0]),
        ([replica(0, reply=wrote("a", "later"), end=13), replica(1, reply=wrote("b", 3), end=15)], "", {}, [1, 0]),
    ],
)  # fmt: skip
def test_the_order_of_failures(replicas, msg, lines, order):
    assert [one.id for one in in_order_of_failure(replicas, msg, lines)] == order


def test_the_status_of_an_app_names_the_same_replica():
    replicas = [replica(0, reply=wrote(PEER, 12), end=13), replica(1, reply=wrote("ValueError: x", 11), end=15)]
    status = AppStatus(AppState.FAILED, roles=[RoleStatus("t", replicas)])

    assert status.first_failed_replica() is replicas[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PEER, True),
        ("torch.distributed.DistBackendError: NCCL error, ncclRemoteError: A call failed", True),
        ("RendezvousConnectionError: The connection to the C10d store has failed", True),
        ("RuntimeError: [3]: Timed out waiting 1800000ms for recv operation to complete", True),
        ("torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", True),
        ("ValueError: loss is NaN", False),
        ("ConnectionError: no route to the data server", False),
        ("", False),
    ],
)
def test_an_error_about_lost_peers_is_recognised(text, expected):
    assert lost_its_peers(text) is expected


def test_only_the_ends_of_an_error_are_searched():
    assert lost_its_peers("x" * 100_000 + PEER)
    assert lost_its_peers(PEER + "x" * 100_000)
    assert not lost_its_peers("x" * 50_000 + PEER + "x" * 50_000)


def test_of_many_failed_replicas_few_errors_are_parsed(monkeypatch):
    """All of them took many seconds, and the followers of other apps wait."""
    parsed = []
    parse = failures.ErrorReply.parse
    monkeypatch.setattr(failures.ErrorReply, "parse", staticmethod(lambda text: parsed.append(1) or parse(text)))
    replicas = [replica(k, reply=wrote(PEER, 2000 - k), end=k) for k in range(2000)]

    order = [one.id for one in in_order_of_failure(replicas)]

    assert order[0] == 63
    assert sorted(order) == [*range(2000)]
    assert len(parsed) == 64
