"""Records of apps in which any value is replaced: an error of their app, or a description that can be stored.

A few hundred examples of each, the same each time; 10 000 with `LAUNCH_SOAK=1`, `LAUNCH_FUZZ=20` new ones.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_launch._task.places import copied_variables
from airflow_provider_launch.schedulers.aws_batch import request as aws_batch
from airflow_provider_launch.schedulers.aws_batch.naming import Tag
from airflow_provider_launch.schedulers.aws_batch.options import AwsBatchOpts
from airflow_provider_launch.schedulers.docker import request as docker
from airflow_provider_launch.schedulers.docker.containers import DamagedError
from airflow_provider_launch.schedulers.docker.options import DockerOpts
from airflow_provider_launch.schedulers.kubernetes import request as kubernetes
from airflow_provider_launch.schedulers.kubernetes.objects import apps_in
from airflow_provider_launch.schedulers.kubernetes.options import KubernetesOpts
from airflow_provider_launch.schedulers.kubernetes.record import UNREADABLE
from airflow_provider_launch.schedulers.kubernetes.record import DamagedError as DamagedJobError
from airflow_provider_launch.schedulers.local import leases, shim
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler, create_scheduler
from airflow_provider_launch.schedulers.local.supervisor import DAMAGE
from airflow_provider_launch.schedulers.slurm import request as slurm
from airflow_provider_launch.schedulers.slurm import store
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts
from airflow_provider_launch.schedulers.slurm.records import Attempt, Record
from airflow_provider_launch.schedulers.slurm.status import Standing, response_from
from airflow_provider_launch.specs import AppDef, AppState, Resource, Role
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import AppUnavailableError
from airflow_provider_launch.specs.owner import owner_of
from airflow_provider_launch.specs.states import is_terminal
from airflow_provider_launch.util.untrusted import clean_json
from tests.fuzz.test_untrusted import DOCUMENTS, fuzzed
from tests.kubernetes.test_damaged import job
from tests.support.apps import until
from tests.support.local import sh

APP = AppDef("app", [Role("main", "image", entrypoint="x", num_replicas=2)])


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value of a document."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield from places_in(each, (*place, name))


@st.composite
def changed(draw: st.DrawFn, document: Any) -> Any:
    """A copy in which one or two values are replaced by anything, or removed."""
    found = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.sampled_from([*places_in(found)][1:] or [()]))
        if not place:
            break
        parent = found
        for name in place[:-1]:
            parent = parent[name]
        if draw(st.integers(0, 9)) == 0:
            del parent[place[-1]]
        else:
            parent[place[-1]] = draw(DOCUMENTS)
    return found


def assert_storable(response: Any) -> None:
    status = response.to_status().to_json()
    assert clean_json(status) == status
    json.dumps(status, allow_nan=False)


# ---- local -----------------------------------------------------------------------------------------------------------


class Ended:
    """An app that has ended, its directory, and its two records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        scheduler = create_scheduler("fuzz", root=str(root))
        self.app_id = scheduler.schedule(scheduler.submit_dryrun(AppDef("app", [sh("exit 3")]), {}))
        until(lambda: is_terminal(scheduler.describe(self.app_id).state))
        until(lambda: not scheduler._records.is_supervised(self.app_id))
        self.dir = root / "apps" / self.app_id
        self.state, self.request = (json.loads((self.dir / name).read_text()) for name in ("state.json", "app.json"))

    def scheduler(self) -> LocalScheduler:
        return create_scheduler("fuzz", root=str(self.root))


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Ended:
    return Ended(tmp_path_factory.mktemp("fuzz") / "root")


STATE = {
    "state": "FAILED", "final": True, "msg": "m", "app_attempt": 0, "host": "h", "boot_id": "b", "ports": {},
    "replicas": [
        {"role": "main", "id": 0, "phase": "failed", "attempt": 0, "code": 3, "signal": None, "start": 1.0,
         "end": 2.0, "lost": None, "outside": None}
    ],
}  # fmt: skip


@fuzzed
@given(DOCUMENTS | st.dictionaries(st.sampled_from(["LAUNCH_PORT_MAIN_X", "main/0", "shim"]), DOCUMENTS))
def test_files_of_a_supervisor(tmp_path_factory, document):
    """A program may write anything there: an error that ends its app, and no lock beyond the ports and GPUs."""
    root = tmp_path_factory.mktemp("root")
    (root / "app").mkdir()
    roles = [{"name": "main", "ports": {"x": 0}, "gpu": 1, "replicas": [{}]}]
    for name in ("ports.json", "gpus.json", "pid"):
        (root / "app" / name).write_text(json.dumps(document))
    held = leases.Leases(str(root), str(root / "app"), "app")
    with contextlib.suppress(*DAMAGE):
        assert 0 < held.ports(roles)["LAUNCH_PORT_MAIN_X"] < 2**16
    with contextlib.suppress(*DAMAGE):
        held.gpus(roles, ["GPU-1"], lambda: False)
    for fd in held._reserved.values():
        os.close(fd)

    locks = {path.relative_to(root).as_posix() for path in root.rglob("*.lock")}
    assert len(locks) <= 2
    assert all(re.fullmatch(r"ports/[0-9]{1,5}\.lock|gpus/GPU-1\.lock", path) for path in locks)
    found = shim.shim_of(str(root / "app"))
    assert found is None or type(found["shim"]) is int


@fuzzed
@given(changed(STATE))
def test_states_of_local_apps(ended, document):
    assert STATE.keys() == ended.state.keys()
    assert STATE["replicas"][0].keys() == ended.state["replicas"][0].keys()
    # Final, because each other state starts a supervisor.
    (ended.dir / "state.json").write_text(json.dumps({**document, "final": True}))
    scheduler = ended.scheduler()

    with contextlib.suppress(AppUnavailableError):
        assert_storable(scheduler.describe(ended.app_id))
    assert [row.app_id for row in scheduler.list()] == [ended.app_id]
    (ended.dir / "state.json").write_text(json.dumps(ended.state))


REQUEST = {
    "request": {
        "app_id": "app-1", "name": "app", "spec_hash": "0" * 16, "grace_s": 1.0, "time_limit_s": None, "metadata": {},
        "log_max_mb": None, "log_dir": None, "notes": [],
        "roles": [
            {"name": "main", "entrypoint": "sh", "working_dir": "/", "env": {"A": "b"}, "policy": "APPLICATION",
             "replicas": [{"args": ["-c"], "env": {"B": "c"}}], "max_retries": 0, "gpu": 0, "ports": {}, "image": "",
             "service": False}
        ],
    },
    "app": {
        "name": "app", "metadata": {},
        "roles": [{"name": "main", "image": "", "entrypoint": "sh", "args": ["-c"], "num_replicas": 1, "env": {}}],
    },
    "created": 1.0,
}  # fmt: skip


@fuzzed
@given(changed(REQUEST))
def test_requests_of_local_apps(ended, document):
    path = ended.dir / "app.json"
    path.write_text(json.dumps({"host": ended.request["host"], "boot_id": ended.request["boot_id"], **document}))
    scheduler = ended.scheduler()

    with contextlib.suppress(AppUnavailableError):
        assert_storable(scheduler.describe(ended.app_id))
    with contextlib.suppress(AppUnavailableError):
        scheduler.describe_native(ended.app_id)
    assert [row.app_id for row in scheduler.list()] == [ended.app_id]
    path.write_text(json.dumps(ended.request))


# ---- the other backends ----------------------------------------------------------------------------------------------

SLURM = json.loads(json.dumps({"request": slurm.build_request(APP, SlurmOpts(), "app-1", {}).to_json(), "instance": 1}))
STANDINGS = [Standing(AppState.RUNNING), *(Standing(AppState.FAILED, why) for why in ("limit", "nostart", "exit"))]


@fuzzed
@given(changed(SLURM))
def test_requests_of_slurm(document):
    data = json.dumps(document).encode()
    found = store._request_in("app-1", store.FilePart(True, data, len(data), 1, 1))
    if not isinstance(found, str):
        for standing in STANDINGS:
            attempts = [Attempt(0, 0, 0, 0, code=3, ended=1.0)]
            assert_storable(response_from(Record("app-1"), standing, found[1], attempts))


DOCKER = json.loads(json.dumps(docker.build_request(APP, DockerOpts(), "app-1", {}, []).to_json()))


@fuzzed
@given(changed(DOCKER))
def test_requests_of_docker(document):
    with contextlib.suppress(DamagedError):
        docker.request_in({"Config": {"Env": [f"{docker.REQUEST_ENV}={json.dumps(document)}"]}})


AWS_APP = AppDef("app", [Role("main", "image", entrypoint="x", num_replicas=2, resource=Resource(1, 0, 512))])
AWS = aws_batch.build_request(AWS_APP, AwsBatchOpts(queue="q"), "app-1", {"A": "b"})
AWS_DOCUMENT = json.loads(json.dumps({"app": AWS.app, "options": AWS.options, "copied_env": AWS.copied_env}))


@fuzzed
@given(changed(AWS_DOCUMENT))
def test_requests_of_aws_batch(document):
    text = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
    definition = {"tags": {str(Tag.APP_ID): "app-1"}, "parameters": {aws_batch._RECORD: text}}
    found = aws_batch.request_in(definition)
    if found is not None:
        # The list needs them, and must show the other apps.
        assert found.opts.queue
        assert found.layout
        assert found.spec_hash
        assert [role.name for role in found.app_def.roles]
        json.dumps(owner_of(found.app_def.metadata))
        copied_variables(AppDryRunInfo(found, str))


KUBERNETES = json.loads(json.dumps(kubernetes.build_request(APP, KubernetesOpts(), "app-1", {}).to_json()))


@fuzzed
@given(changed(KUBERNETES))
def test_requests_of_kubernetes(document):
    with contextlib.suppress(*UNREADABLE):
        kubernetes.unpacked(base64.b64encode(zlib.compress(json.dumps(document).encode())).decode())


@fuzzed
@given(changed(job("bad")))
def test_jobs_of_kubernetes(document):
    """The Kubernetes API guarantees the types of fields, but not the texts in labels and annotations."""
    metadata = document.get("metadata")
    texts = metadata if isinstance(metadata, dict) else {}
    damaged = job("bad")
    for kind in ("labels", "annotations"):
        given_texts = texts.get(kind)
        for name, text in given_texts.items() if isinstance(given_texts, dict) else ():
            if name in damaged["metadata"][kind]:
                damaged["metadata"][kind][name] = text if isinstance(text, str) else json.dumps(text)
    apps = apps_in([damaged, job("good")])

    assert apps["good"].plan() is not None
    for app in apps.values():
        with contextlib.suppress(DamagedJobError):
            app.plan()
