"""Containers of a private daemon when it stops and restarts."""

from __future__ import annotations

import contextlib

import pytest

from tests.engines.docker import images
from tests.engines.docker.private import PrivateDocker
from tests.support.apps import until

pytestmark = pytest.mark.engine("dockerd")

SCRIPT = "trap 'echo got TERM; exit 9' TERM; i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"


@pytest.mark.parametrize("end", ["term", "kill"])
@pytest.mark.parametrize("live_restore", [True, False])
def test_a_container_meets_the_end_of_its_daemon(end, live_restore):
    """With live-restore it continues; otherwise the daemon stops it, after a crash at the restart."""
    with PrivateDocker(live_restore=live_restore) as private, contextlib.closing(private.client()) as client:
        first = client.networks.get("bridge").attrs["Created"]
        container = client.containers.run(images.busybox(client), ["sh", "-c", SCRIPT], detach=True, init=True)
        until(container.logs)

        getattr(private, end)()
        assert private.daemon.pid is None
        private.start()

        code = container.wait()["StatusCode"]
        container.reload()
        last = client.networks.get("bridge").attrs["Created"]
        text = container.logs().decode().split("\n")
        if live_restore:
            assert code == 7
            assert text == [*map(str, range(1, 41)), ""]
            assert last == first
        else:
            assert code == 9
            assert text[-2:] == ["got TERM", ""]
            assert first < container.attrs["State"]["FinishedAt"] < last
        assert container.attrs["State"]["Error"] == ""
