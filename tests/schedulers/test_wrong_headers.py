"""Headers of engines and proxies that are not what they should be: an outage, not an error of Python."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest

from airflow_provider_launch.schedulers._kit.http import BusyRetry, epoch_of, server_message
from airflow_provider_launch.schedulers.aws_batch.client import Aws
from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.specs.errors import SchedulerUnavailableError

DATES = ["garbage", "", ",", "Fri, 31 Dec 9999 23:59:59 -2359", "Mon, 99 Jan 2026 00:00:00 GMT", "1", "\u0661"]


@pytest.mark.parametrize("date", DATES)
def test_an_invalid_date_is_a_value_error(date) -> None:
    with pytest.raises(ValueError, match="its header Date is"):
        epoch_of(date)


def test_the_error_for_an_invalid_date_is_short() -> None:
    """A header may have megabytes, and the text is shown in the task log."""
    with pytest.raises(ValueError, match="its header Date is") as caught:
        epoch_of("garbage" * 1000)

    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b'{"message": "no such\\n image"}', "no such image"),
        (b'{"error": "no"}', '{"error": "no"}'),
        (b"[]", "[]"),
        (b"[1]", "[1]"),
        (b'"text"', '"text"'),
        (b"null", "null"),
        (b"<html>Bad\n Gateway \xff", "<html>Bad Gateway \N{REPLACEMENT CHARACTER}"),
        (b"[" * 100_000, "[" * 1000),
    ],
    ids=["message", "another key", "empty list", "list", "text", "null", "page", "deep"],
)
def test_the_message_of_a_server_is_found_or_its_answer_is_shown(answer: bytes, text: str) -> None:
    """A proxy in front of the engine answers with anything."""
    assert server_message(answer) == text


def test_a_date_is_read() -> None:
    assert epoch_of("Thu, 01 Jan 1970 00:01:00 GMT") == 60


def test_a_pause_that_is_not_a_number_is_not_waited_for() -> None:
    assert not BusyRetry(0.1, 0.2).pause(5, float("nan"))
    assert not BusyRetry(0.1, 0.2).pause(5, float("inf"))


class Answer(AbstractContextManager["Answer"]):
    """An answer of the API server."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers

    def __exit__(self, *_: object) -> None: ...

    def stream(self, *_: object, **__: object) -> list[bytes]:
        return [b'{"items": []}']

    def close(self) -> None: ...

    def release_conn(self) -> None: ...


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        *((200, {"Date": date}) for date in DATES if date),
        *((429, {"Retry-After": text}) for text in ("nan", "inf", "-inf", "1e999", "x")),
    ],
)
def test_wrong_headers_of_kubernetes_are_an_outage(monkeypatch, status, headers) -> None:
    cluster = Cluster(KubernetesConnection(timeout_s=1))
    monkeypatch.setattr(Cluster, "url", "https://k")
    monkeypatch.setattr(Cluster, "namespace", "ns")
    monkeypatch.setattr(cluster, "_sent", lambda *_: Answer(status, headers))

    with pytest.raises(SchedulerUnavailableError):
        cluster.list("jobs", "")


def test_a_wrong_date_of_aws_is_an_outage() -> None:
    class Client:
        def describe_jobs(self, **_: Any) -> dict[str, Any]:
            return {"ResponseMetadata": {"HTTPHeaders": {"date": "garbage"}}}

    class Tokens:
        def take(self) -> None: ...

    aws = Aws.__new__(Aws)
    with pytest.raises(SchedulerUnavailableError, match="header Date"):
        aws._call(Client(), Tokens(), "describe_jobs", {})
