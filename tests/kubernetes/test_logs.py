"""Logs on the cluster: changes by the node, and messages about lost lines."""

from __future__ import annotations

import pytest

from airflow_provider_launch.follow.follower import Follower
from airflow_provider_launch.specs import AppState, RetryPolicy
from tests.faults import Fault
from tests.faults.proxy import Exchange
from tests.support.follow import collect, texts

pytestmark = pytest.mark.engine("kubernetes")


def test_odd_output_is_complete_but_for_carriage_returns_before_line_feeds(kubernetes_apps):
    """containerd drops carriage returns and changes nothing else."""
    written = [
        (r"\n", "\n"),
        (r"50%%\r100%%\n", "50%\r100%\n"),
        (r"dos\r\n", "dos\n"),
        (r"  blanks\t \n", "  blanks\t \n"),
        (r"\346\227\245\346\234\254\n", "日本\n"),
        (r"a\013b\014c\302\205d\342\200\250e\n", "a\x0bb\x0cc\x85d\u2028e\n"),
        (r"\033[31mred\033[0m\n", "\x1b[31mred\x1b[0m\n"),
        (r"2020-01-01T00:00:00.000000000Z no time of ours\n", "2020-01-01T00:00:00.000000000Z no time of ours\n"),
        (r"broken \377\376!\n", "broken \ufffd\ufffd!\n"),
        (r"end", "end"),
    ]
    apps = kubernetes_apps
    found = apps.run(apps.sh("; ".join(f"printf '{octal}'" for octal, _ in written)))

    assert apps.lines(found.app_id) == [text for _, text in written]


def test_lines_that_were_rotated_away_are_reported(kubernetes_apps):
    """A reader that returns after megabytes finds another file; it continues, and reports missing lines."""
    apps = kubernetes_apps
    flood = (
        "n=0; while [ $n -lt 10 ]; do n=$((n + 1)); head -c 4000000 /dev/zero | tr '\\0' x | fold -w 999; sleep 3; done"
    )
    app_id = apps.start(apps.sh(f"echo first; sleep 3; {flood}; echo; echo last"))
    apps.until(app_id, lambda _: apps.lines(app_id))
    chunk = apps.scheduler.read_logs(app_id, "main", 0)
    # On a busy host more than one.
    rest = [line.text for line in chunk.lines]
    assert rest[0] == "first\n"
    assert apps.end(app_id).state is AppState.SUCCEEDED
    while (chunk := apps.another().read_logs(app_id, "main", 0, chunk.cursor)).lines:
        rest += [line.text for line in chunk.lines]

    assert rest[-1] == "last\n"
    told = [text for text in rest if "lines may be missing here" in text]
    # Without a rotation, on a cluster that keeps more, everything is there.
    assert len(told) == 1 or sum(len(text) for text in rest) > 40_000_000


def test_a_log_that_is_followed_loses_nothing_to_rotation(kubernetes_apps, kubernetes_proxy):
    """The node keeps some megabytes; a reader that keeps up gets all lines."""
    apps = kubernetes_apps
    lines = "seq $((n * 10000)) $((n * 10000 + 3999)) | sed 's/$/ '$PAD'/'"
    flood = f"n=0; while [ $n -lt 12 ]; do n=$((n + 1)); {lines}; sleep 2; done"
    app_id = apps.start(apps.sh(f"PAD=$(head -c 990 /dev/zero | tr '\\0' x); echo first; sleep 4; {flood}"))
    with Follower(apps.another(), app_id) as follower:
        seen = [text.split()[0] for text in texts(collect(follower, 240), "main")]

    assert any(request.query.get("follow") for request in kubernetes_proxy.matching("GET", "/log$"))
    assert seen == ["first", *(str(n * 10000 + k) for n in range(1, 13) for k in range(4000))]


def test_a_node_without_watchers_is_not_asked_for_each_of_its_pods(kubernetes_apps, kubernetes_proxy):
    """All pods of a node share them, and each stream that is refused costs two requests."""

    def refuse(exchange: Exchange) -> None:
        text = (
            [b"failed to create fsnotify watcher: too many open files"]
            if exchange.request.query.get("follow")
            else None
        )
        exchange.relay(exchange.forward(), text)

    kubernetes_proxy.add(Fault(refuse, "GET", "/log$", times=None))
    apps, scheduler = kubernetes_apps, kubernetes_apps.another()
    role = apps.sh("for i in 1 2 3; do echo $i; sleep 1; done", num_replicas=3)
    found, asked = [], []
    for _ in range(2):
        with Follower(scheduler, apps.start(role)) as follower:
            events = collect(follower, 60)
        found += [texts(events, "main", k) for k in range(3)]
        asked.append(sum(bool(one.query.get("follow")) for one in kubernetes_proxy.matching("GET", "/log$")))

    assert found == [["1\n", "2\n", "3\n"]] * 6
    assert 1 <= asked[0] <= 3
    assert asked[1] == asked[0]


def test_an_attempt_that_never_started_hides_no_later_one(kubernetes_apps):
    """A node may refuse a pod, and an init container may fail."""
    failures = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
    first = {
        "name": "first",
        "image": kubernetes_apps.image,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "test $FAILURES != 0"],
        "env": [{"name": "FAILURES", "valueFrom": {"fieldRef": {"fieldPath": failures}}}],
    }
    role = kubernetes_apps.sh("echo up", max_retries=1, retry_policy=RetryPolicy.REPLICA)
    found = kubernetes_apps.run(role, overlay={"pod": {"initContainers": [first]}})

    assert (found.state, found.num_restarts) == (AppState.SUCCEEDED, 1)
    assert kubernetes_apps.lines(found.app_id) == ["up\n"]


def test_the_log_of_a_deleted_pod_ends_and_the_app_is_still_known(kubernetes_apps):
    apps = kubernetes_apps
    found = apps.run(apps.sh("echo run"))
    assert apps.lines(found.app_id) == ["run\n"]
    (pod,) = apps.pods(found.app_id)
    apps.call("DELETE", f"/api/v1/{{ns}}/pods/{pod.name}")

    assert list(apps.another().log_iter(found.app_id, "main", 0)) == []
    assert apps.another().describe(found.app_id).state is AppState.SUCCEEDED
