import json
import pickle
import time

import pytest
import yaml

from airflow_provider_launch.specs import (
    NONE,
    AppFailedError,
    AppState,
    AppStatus,
    AppStatusError,
    ReplicaStatus,
    RoleStatus,
)

FLAT = json.dumps({"message": "ValueError: bad batch size", "errorCode": 1, "timestamp": 1700000000})
NESTED = json.dumps(
    {"message": {"message": "ValueError: bad batch size", "errorCode": 1, "extraInfo": {"timestamp": 1700000000}}}
)
BATCH = "(exitcode: 1)\n        timestamp: 2023-11-14 22:13:20\n        hostname: h\n        error_msg: "


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _failed(reply, **extras):
    return ReplicaStatus(0, AppState.FAILED, "r", "h", reply, **extras)


def _app(*replicas, **fields):
    roles = {}
    for replica in replicas:
        roles.setdefault(replica.role, []).append(replica)
    return AppStatus(AppState.FAILED, roles=[RoleStatus(name, found) for name, found in roles.items()], **fields)


def _replica_text(replica):
    text = _app(replica).format()
    return text[text.index("Roles: ") + len("Roles: \n") : text.index("\n    Msg:")]


EXAMPLE = AppStatus(
    AppState.FAILED,
    2,
    "node lost",
    ui_url="sched.example/jobs/7",
    roles=[
        RoleStatus(
            "ps",
            [
                ReplicaStatus(1, AppState.CANCELLED, "ps", "h2"),
                ReplicaStatus(0, AppState.SUCCEEDED, "ps", "h1"),
            ],
        ),
        RoleStatus(
            "worker",
            [
                ReplicaStatus(0, AppState.FAILED, "worker", "h3", FLAT),
                ReplicaStatus(1, AppState.RUNNING, "worker", "h4"),
            ],
        ),
    ],
)

HEAD = "AppStatus:\n    State: FAILED\n    Num Restarts: 2\n    Roles: "
PS0 = "\n *ps[0]:SUCCEEDED"
PS1 = "\n  ps[1]:CANCELLED (no reply file)"
WORKER0 = (
    "\n *worker[0]:FAILED (exitcode: 1)\n        timestamp: 2023-11-14 22:13:20\n        hostname: h3"
    "\n        error_msg: ValueError: bad batch size"
)
WORKER1 = "\n  worker[1]:RUNNING"
TAIL = "\n    Msg: node lost\n    Structured Error Msg: <NONE>\n    UI URL: sched.example/jobs/7\n    "


@pytest.mark.parametrize(
    ("filters", "replicas"),
    [
        ({}, PS0 + PS1 + WORKER0 + WORKER1),
        ({"filter_roles": []}, PS0 + PS1 + WORKER0 + WORKER1),
        ({"filter_roles": ["ps"]}, PS0 + PS1),
        ({"filter_roles": ["other"]}, ""),
        ({"state_mask_filter": AppState.FAILED.mask}, WORKER0),
        ({"state_mask_filter": AppState.RUNNING.mask | AppState.SUCCEEDED.mask}, PS0 + WORKER1),
        ({"filter_roles": ["ps"], "state_mask_filter": AppState.FAILED.mask}, ""),
    ],
)
def test_format_shows_the_replicas_that_the_filters_keep(filters, replicas):
    assert EXAMPLE.format(**filters) == HEAD + replicas + TAIL


def test_format_of_an_app_without_anything():
    assert AppStatus(AppState.PENDING).format() == (
        "AppStatus:\n    State: PENDING\n    Num Restarts: 0\n    Roles: \n    Msg: \n"
        "    Structured Error Msg: <NONE>\n    UI URL: None\n    "
    )


@pytest.mark.parametrize(
    ("replica", "text"),
    [
        (_failed(NONE), " *r[0]:FAILED (no reply file)"),
        (_failed(NONE, exit_code=137), " *r[0]:FAILED (exitcode: 137)"),
        (ReplicaStatus(3, AppState.CANCELLED, "r", "h", exit_code=-15), "  r[3]:CANCELLED (exitcode: -15)"),
        (ReplicaStatus(3, AppState.SUCCEEDED, "r", "h", exit_code=0), "  r[3]:SUCCEEDED"),
        (_failed(FLAT), f" *r[0]:FAILED {BATCH}ValueError: bad batch size"),
        (_failed(NESTED), f" *r[0]:FAILED {BATCH}ValueError: bad batch size"),
        (_failed("it broke\nbadly"), " *r[0]:FAILED\nit broke\nbadly"),
        (_failed('{"message": "cut'), ' *r[0]:FAILED\n{"message": "cut'),
        (_failed('{"other": 1}'), ' *r[0]:FAILED\n{"other": 1}'),
        (_failed('{"message": {"message": 5}}'), ' *r[0]:FAILED\n{"message": {"message": 5}}'),
        (_failed("[1]"), " *r[0]:FAILED\n[1]"),
        (_failed("5"), " *r[0]:FAILED\n5"),
        (_failed("[" * 100_000), " *r[0]:FAILED\n" + "[" * 100_000),
    ],
)
def test_format_shows_the_known_facts_of_a_failed_replica(replica, text):
    assert _replica_text(replica) == text


@pytest.mark.parametrize(
    ("fields", "exit_code", "timestamp"),
    [
        ({}, "<N/A>", "<N/A>"),
        ({"errorCode": 0, "timestamp": None}, "<N/A>", "<N/A>"),
        ({"errorCode": "7", "timestamp": "1700000000"}, "7", "2023-11-14 22:13:20"),
        ({"errorCode": "x", "timestamp": "yesterday"}, "<N/A>", "<N/A>"),
        ({"errorCode": True, "timestamp": True}, "<N/A>", "<N/A>"),
        ({"errorCode": [1], "timestamp": {}}, "<N/A>", "<N/A>"),
        ({"errorCode": -9, "timestamp": 1e40}, "-9", "<N/A>"),
        ({"errorCode": -9, "timestamp": 1e12}, "-9", "<N/A>"),
        ({"errorCode": -9, "timestamp": 1e17}, "-9", "<N/A>"),
        ({"errorCode": float("nan"), "timestamp": float("inf")}, "<N/A>", "<N/A>"),
        ({"errorCode": 1, "timestamp": 1700000000.9}, "1", "2023-11-14 22:13:20"),
        ({"errorCode": 10**400, "timestamp": 10**400}, "<N/A>", "<N/A>"),
    ],
)
def test_a_missing_or_odd_number_of_a_reply_is_not_available(fields, exit_code, timestamp):
    shown = _replica_text(_failed(json.dumps({"message": "m", **fields})))

    assert shown == (
        f" *r[0]:FAILED (exitcode: {exit_code})\n        timestamp: {timestamp}\n"
        "        hostname: h\n        error_msg: m"
    )


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("plain", "plain"),
        (
            "before RuntimeError('On WorkerInfo(id=1, name=t:0):\nValueError('x')\nTraceback:\n')\nafter",
            "RuntimeError('On WorkerInfo(id=1, name=t:0):\nValueError('x')\nTraceback:\n')",
        ),
        (
            (
                "RuntimeError('On WorkerInfo(id=0, name=w):\nRuntimeError('CUDA out of memory')\n"
                "Exception raised from malloc at x.cpp:1\nframe #0\n')"
            ),
            "RuntimeError('CUDA out of memory')",
        ),
        ("a RuntimeError('On WorkerInfo(id=0): short') b", "RuntimeError('On WorkerInfo(id=0): short')"),
        ("RuntimeError('On WorkerInfo(id=0):\ncut", "RuntimeError('On WorkerInfo(id=0):\ncut"),
        ("a\nException: b", "a"),
        ("CUDA error: out of memory\nException raised from create_event at x\nframe #0", "CUDA error: out of memory"),
        ("Exception: b", "Exception: b"),
    ],
)
def test_an_rpc_error_inside_the_text_replaces_it(message, shown):
    assert _replica_text(_failed(json.dumps({"message": message}))).partition("error_msg: ")[2] == shown


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        ("a" * 79 + " b", ["a" * 79 + " b"]),
        ("a" * 80 + " b", ["a" * 80, " b"]),
        ("a" * 200 + " b", ["a" * 200, " b"]),
        ("a" * 80 + " " + "b" * 78 + " c " + "d", ["a" * 80, " " + "b" * 78 + " c", " d"]),
        ("a" * 40 + "\n" + "b" * 39 + " c", ["a" * 40, "b" * 39, " c"]),
    ],
)
def test_a_long_error_text_breaks_before_the_first_blank_from_80_characters_on(message, lines):
    shown = _replica_text(_failed(json.dumps({"message": message}))).partition("error_msg: ")[2].split("\n")

    label = " " * len("    error_msg: ")
    assert [line.removeprefix(label) for line in shown] == lines
    assert all(line.startswith(label) for line in shown[1:] if line.lstrip() != line)


def test_repr_is_yaml_with_sorted_keys():
    assert repr(AppStatus(AppState.RUNNING, 2)) == (
        "AppStatus:\n  msg: ''\n  num_restarts: 2\n  roles: []\n  state: RUNNING (3)\n"
        "  structured_error_msg: <NONE>\n  ui_url: null\n"
    )


def test_repr_with_replicas_can_be_read_by_a_safe_loader():
    status = AppStatus(
        AppState.FAILED,
        structured_error_msg='{"a": [1, null]}',
        roles=[
            RoleStatus(
                "r",
                [
                    ReplicaStatus(0, AppState.FAILED, "r", "h", FLAT, exit_code=1),
                    ReplicaStatus(1, AppState.RUNNING, "r", "", "{cut"),
                ],
            )
        ],
        metadata={"obj": AppState.PENDING, "tuple": (1, {2: "x"})},
    )

    assert yaml.safe_load(repr(status)) == {
        "AppStatus": {
            "state": "FAILED (5)",
            "msg": "",
            "num_restarts": 0,
            "structured_error_msg": {"a": [1, None]},
            "ui_url": None,
            "metadata": {"obj": "PENDING (2)", "tuple": [1, {"2": "x"}]},
            "roles": [
                {
                    "role": "r",
                    "replicas": [
                        {
                            "id": 0,
                            "state": "FAILED (5)",
                            "role": "r",
                            "hostname": "h",
                            "hostaddr": "h",
                            "structured_error_msg": json.loads(FLAT),
                            "exit_code": 1,
                        },
                        {
                            "id": 1,
                            "state": "RUNNING (3)",
                            "role": "r",
                            "hostname": "",
                            "hostaddr": "",
                            "structured_error_msg": "{cut",
                        },
                    ],
                }
            ],
        }
    }


def test_metadata_that_yaml_cannot_write_is_a_short_text():
    """Numbers of libraries are subclasses of those of Python."""

    class Size(int):
        pass

    status = AppStatus(AppState.FAILED, msg="m", metadata={"size": Size(3), "long": "x" * 1000})
    shown = yaml.safe_load(repr(status))["AppStatus"]

    assert shown["metadata"] == f"{{'size': 3, 'long': '{'x' * 479}"
    assert (shown["state"], shown["msg"]) == ("FAILED (5)", "m")


ODD_TEXTS = [
    "",
    "\0\x1b[31m",
    "\ud800",
    "null",
    "NaN",
    "%",
    "- a: [",
    "é\u2028\x85",
    "[" * 800 + "]" * 800,
    '{"message": "' + "x " * 1000 + '"}',
    '{"message": {"message": "m", "extraInfo": 5}}',
    '{"message": null, "errorCode": 1}',
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
def test_no_text_of_a_job_makes_a_text_form_fail(text):
    """The job may have been killed while it wrote the text."""
    status = _app(_failed(text, error_msg=text, reason=text), msg=text, structured_error_msg=text, ui_url=text)

    assert status.format().startswith("AppStatus:\n")
    assert status.get_formatted_str().startswith("\nState: FAILED")
    assert "AppStatus" in yaml.safe_load(repr(status))
    json.dumps(status.to_json())
    with pytest.raises(AppFailedError, match="job did not succeed: FAILED"):
        status.raise_for_status()


def test_to_json_leaves_out_unset_fields():
    assert AppStatus(AppState.SUCCEEDED, ui_url="u").to_json() == {
        "state": "SUCCEEDED",
        "num_restarts": 0,
        "roles": [],
        "msg": "",
        "structured_error_msg": NONE,
        "url": "u",
    }


def test_to_json_has_the_state_of_an_app_by_name_and_of_a_replica_by_number():
    status = _app(
        _failed(NONE, exit_code=0, start_time=1, end_time=2, num_restarts=0, reason="OOM", error_msg="e"),
        ReplicaStatus(0, AppState.RUNNING, "other", "h2", hostaddr="10.0.0.1"),
        metadata={"a": 1},
    )

    plain = json.loads(json.dumps(status.to_json()))

    assert plain["state"] == "FAILED"
    assert plain["metadata"] == {"a": 1}
    assert plain["roles"] == [
        {
            "role": "r",
            "replicas": [
                {
                    "id": 0,
                    "state": 5,
                    "role": "r",
                    "hostname": "h",
                    "structured_error_msg": NONE,
                    "hostaddr": "h",
                    "exit_code": 0,
                    "error_msg": "e",
                    "start_time": 1,
                    "end_time": 2,
                    "num_restarts": 0,
                    "reason": "OOM",
                }
            ],
        },
        {
            "role": "other",
            "replicas": [
                {
                    "id": 0,
                    "state": 3,
                    "role": "other",
                    "hostname": "h2",
                    "structured_error_msg": NONE,
                    "hostaddr": "10.0.0.1",
                }
            ],
        },
    ]
    assert [role["role"] for role in status.to_json(filter_roles=["other"])["roles"]] == ["other"]
    assert status.to_json(filter_roles=[]) == status.to_json()


TRAINER0 = "\n- [trainer:0]\n  Timestamp: 1700000000; Exit Code: 137\n  State: FAILED\n  Error Message: out of memory\n"
TRAINER1 = "\n- [trainer:1]\n  Timestamp: None; Exit Code: None\n  State: RUNNING\n  Error Message: None\n"


@pytest.mark.parametrize(
    ("state_filter", "roles"),
    [
        ((AppState.FAILED.mask,), f"- Role: [trainer]:\n{TRAINER0}\n"),
        ((), f"- Role: [trainer]:\n{TRAINER0}{TRAINER1}\n"),
        ((AppState.SUCCEEDED.mask,), ""),
    ],
)
def test_the_older_layout(state_filter, roles):
    status = AppStatus(
        AppState.FAILED,
        1,
        "node lost",
        roles=[
            RoleStatus(
                "trainer",
                [
                    ReplicaStatus(
                        0,
                        AppState.FAILED,
                        "trainer",
                        "h",
                        exit_code=137,
                        end_time=1700000000,
                        error_msg="out of memory",
                    ),
                    ReplicaStatus(1, AppState.RUNNING, "trainer", "h"),
                ],
            )
        ],
    )

    assert status.get_formatted_str(*state_filter) == (
        f"\nState: FAILED ; Num Restarts: 1\nMsg: node lost\nReplicas: \n{roles}\n"
    )


def test_a_replica_alone_in_the_older_layout():
    replica = _failed(NONE, exit_code=1)

    assert replica.get_formatted_str() == (
        "\n- [r:0]\n  Timestamp: None; Exit Code: 1\n  State: FAILED\n  Error Message: None\n"
    )
    assert replica.get_formatted_str(AppState.RUNNING.mask) == ""


def test_success_raises_nothing():
    AppStatus(AppState.SUCCEEDED).raise_for_status()


@pytest.mark.parametrize("state", [state for state in AppState if state is not AppState.SUCCEEDED])
def test_any_other_state_raises_with_the_status(state):
    status = AppStatus(state)

    with pytest.raises(AppStatusError) as caught:
        status.raise_for_status()

    assert caught.value.status is status
    assert str(caught.value) == f"job did not succeed: {state.name}"
    assert isinstance(caught.value, AppFailedError) is status.is_terminal()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            EXAMPLE,
            (
                "job did not succeed: FAILED: node lost\n"
                "first failed replica: worker[0] FAILED (exit code 1, host h3)\n"
                "ValueError: bad batch size"
            ),
        ),
        (
            _app(
                ReplicaStatus(0, AppState.FAILED, "a", "h1", exit_code=1, end_time=20),
                ReplicaStatus(1, AppState.FAILED, "b", "h2", exit_code=137, end_time=10, reason="OOMKilled"),
                ReplicaStatus(0, AppState.CANCELLED, "b", "h3", end_time=5),
            ),
            "job did not succeed: FAILED\nfirst failed replica: b[1] FAILED (exit code 137, reason OOMKilled, host h2)",
        ),
        (
            _app(ReplicaStatus(0, AppState.FAILED, "a", "", error_msg="\n first\nsecond")),
            "job did not succeed: FAILED\nfirst failed replica: a[0] FAILED (no exit code)\nfirst",
        ),
        (
            AppStatus(AppState.CANCELLED, structured_error_msg="asked for\nby alice"),
            "job did not succeed: CANCELLED\nasked for",
        ),
    ],
)
def test_the_error_shows_state_first_failed_replica_and_error_in_a_few_lines(status, text):
    with pytest.raises(AppStatusError) as caught:
        status.raise_for_status()

    assert str(caught.value) == text


def test_status_objects_survive_pickle():
    assert pickle.loads(pickle.dumps(EXAMPLE)) == EXAMPLE
