"""Messages of engines of all versions, and their meaning: no engine is needed."""

from __future__ import annotations

import pytest

from airflow_provider_launch.schedulers.docker.engine import _LEADS_NOWHERE
from airflow_provider_launch.schedulers.docker.options import DockerConnection
from airflow_provider_launch.schedulers.docker.wire import Wire
from airflow_provider_launch.specs import SchedulerRejectedError

START = "POST /containers/x/start"
FILE = "cannot serve GET /containers/x/archive now (500): "


@pytest.mark.parametrize(
    ("code", "text", "cure"),
    [
        (500, 'could not select device driver "" with capabilities: [[gpu]]', "install the GPU runtime"),
        (500, "failed to discover GPU vendor from CDI: no known GPU vendor found", "install the GPU runtime"),
        (500, "driver failed: Bind for 0.0.0.0:80 failed: port is already allocated", "choose another port"),
        (500, "failed to set up: Bind for 0.0.0.0:80 failed: Port is already allocated", "choose another port"),
        (404, "could not find an available, non-overlapping IPv4 address pool", "remove unused networks"),
    ],
)
def test_what_does_not_pass_by_itself_is_refused_with_its_cure(code: int, text: str, cure: str) -> None:
    error = Wire(DockerConnection(host="unix:///none"))._refused(code, text, START, outdated=False)

    assert isinstance(error, SchedulerRejectedError)
    assert text in str(error)
    assert cure in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "evalSymlinksInScope: too many links in /tmp/launch-result.json",
        "lstat /var/lib/docker/overlay2/1/merged/tmp/x: too many levels of symbolic links",
        "Error response: lstat /var/lib/docker/overlay2/1/merged/tmp: not a directory",
        "lstat /tmp/launch-result.json: not a directory",
    ],
)
def test_a_path_that_leads_nowhere_has_no_file(text: str) -> None:
    """A program may replace the directory of its result by a link to itself."""
    assert _LEADS_NOWHERE.search(f"{FILE}{text}")


@pytest.mark.parametrize("text", ["input/output error", "lstat /tmp: permission denied", "no such container: x"])
def test_another_failure_at_a_file_is_an_outage(text: str) -> None:
    assert not _LEADS_NOWHERE.search(f"{FILE}{text}")
