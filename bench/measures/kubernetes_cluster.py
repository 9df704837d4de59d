"""The cluster of the measures: that of the tests, with their shell image and its own namespace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rows import skip

IMAGE = os.environ.get("BENCH_IMAGE", "")
KUBECONFIG = os.environ.get("BENCH_KUBECONFIG", "")
NAMESPACE = os.environ.get("BENCH_NAMESPACE", "")


@contextmanager
def use(what: str) -> Iterator[Any]:
    """Find the cluster and return its client; skip the measure if no cluster answers."""
    global IMAGE, KUBECONFIG, NAMESPACE  # noqa: PLW0603 - found once
    from kubernetes import config
    from tests.engines.docker.images import BUSYBOX
    from tests.engines.kubernetes import engine, images, namespaces

    kubeconfig, why = engine.find()
    if kubeconfig is None:
        skip(what, why)
        sys.exit(0)
    KUBECONFIG, ours = str(kubeconfig), engine.ours()
    IMAGE = images.busybox(ours) if Path(KUBECONFIG) == ours.kubeconfig else BUSYBOX
    with config.new_client_from_config(KUBECONFIG) as client:
        NAMESPACE = namespaces.create(client)
        # For the processes of the tasks too.
        os.environ.update(BENCH_IMAGE=IMAGE, BENCH_KUBECONFIG=KUBECONFIG, BENCH_NAMESPACE=NAMESPACE)
        try:
            yield client
        finally:
            namespaces.delete(client, NAMESPACE)
