"""An error of the log of one app is not an outage of its scheduler."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from airflow_provider_launch.schedulers.kubernetes.client import Cluster
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesConnection
from airflow_provider_launch.schedulers.local.records import Records
from airflow_provider_launch.schedulers.slurm.options import SlurmConnection
from airflow_provider_launch.schedulers.slurm.store import Store
from airflow_provider_launch.schedulers.slurm.transport import LocalTransport
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerUnavailableError


def private(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def records(tmp_path) -> Records:
    root = private(tmp_path / "root")
    private(private(root / "apps") / "bad")
    return Records(str(root))


def test_a_link_that_leads_nowhere_is_an_error_of_its_app(records):
    """Its program may choose any target, and so most of the errors of the file system."""
    path = Path(records.dir("bad"), "run")
    path.symlink_to("a" * 300)
    with pytest.raises(AppUnavailableError, match="File name too long"), records.readable():
        os.scandir(path)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ESTALE])
def test_an_error_of_the_disk_or_the_process_is_an_outage(records, code):
    with pytest.raises(SchedulerUnavailableError) as caught, records.readable():
        raise OSError(code, os.strerror(code), f"{records.dir('bad')}/run")

    assert type(caught.value) is SchedulerUnavailableError


@pytest.mark.parametrize("names", [["start,0,0,0,profiles"], ["start,0,0,0,\nfiles\n"]], ids=["end", "line"])
def test_a_record_with_any_name_is_at_most_an_error_of_its_app(tmp_path, names):
    """The names are listed before the contents of files, which start after a line of their own."""
    root = private(tmp_path / "root")
    app = private(private(root / "apps") / "bad")
    (app / "id").write_text("hash:instance")
    status = private(app / "status")
    (status / "start,0,0,0,0,host,1.0").touch()
    for name in names:
        (status / name).touch()
    store = Store(SlurmConnection(root=str(root)), LocalTransport())
    try:
        _, attempts, _ = store.logs("bad", 0, 0, [])
    except AppUnavailableError:
        assert "\n" in names[0]
    else:
        assert len(attempts) == 1


class Refusal:
    """The answer of an API server whose connection to a kubelet is refused."""

    status = 500
    headers: Mapping[str, str] = MappingProxyType({})

    def stream(self, *_args: Any, **_kwargs: Any) -> Any:
        yield b'{"message": "Get \\"https://10.0.0.7:10250/containerLogs/a\\": dial tcp: connection refused"}'

    def close(self) -> None:
        pass

    release_conn = close


class Access:
    url, namespace = "https://cluster.example", "ns"


def test_a_kubelet_that_is_down_is_an_error_of_its_pods(monkeypatch):
    """The API server answers, so logs of pods on other nodes can be read."""
    cluster = Cluster(KubernetesConnection())
    monkeypatch.setattr(cluster, "_access", Access())
    monkeypatch.setattr(cluster, "_sent", lambda *_args: Refusal())
    started = time.monotonic()
    with pytest.raises(AppUnavailableError, match="connection refused"):
        cluster.log("pod", "main", None)

    assert time.monotonic() - started < 5
