"""Replicas in containers, with a stand-in for apptainer that records its call and runs the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_launch.specs import AppState, Resource, Role, macros
from tests.slurm.conftest import Place

pytestmark = pytest.mark.engine("slurm")

# The options are those of apptainer 1.3: `apptainer exec --help`.
APPTAINER = """#!/bin/bash
# `apptainer exec [options] image program arguments`; it starts in the directory of `--pwd`, or where it was called.
{ printf '%s\\0' "$APPTAINER_BINDPATH" "$@"; } >>"$0-calls-$LAUNCH_REPLICA_ID"
[ "$1" = exec ] || exit 250
shift
while :; do
    case $1 in
        --nv | --bind=*) shift ;;
        --pwd=*) cd "${1#--pwd=}" || exit 255; shift ;;
        -*) echo "unknown flag: $1" >&2; exit 1 ;;
        *) break ;;
    esac
done
[ -d "$1" ] || { echo "FATAL: could not open image $1: no such file or directory" >&2; exit 255; }
export APPTAINER_CONTAINER=$1
shift
exec "$@"
"""


@pytest.fixture
def site(slurm_root) -> Path:
    """A directory of programs that the nodes have, and an image."""
    site = slurm_root.parent / "site"
    (site / "image").mkdir(parents=True)
    (site / "apptainer").write_text(APPTAINER)
    (site / "apptainer").chmod(0o755)
    return site


def call(site: Path, k: int = 0) -> list[str]:
    """Return `APPTAINER_BINDPATH`, and the arguments of `apptainer`."""
    return (site / f"apptainer-calls-{k}").read_text().split("\0")[:-1]


def options(site: Path, **more: object) -> dict[str, object]:
    return {"container": "apptainer", "setup": [f"export PATH={site}:$PATH"], **more}


def test_a_replica_runs_in_its_image(place: Place, site) -> None:
    """Arguments and variables reach the program as they are; each replica has its own macros, logs and code."""
    odd = ["it's", "$$HOME", "a  b\n", "日本", "", macros.replica_id]
    seen = "[os.environ['ODD'], os.environ['APPTAINER_CONTAINER'], sys.argv[1:]]"
    script = f"import json, os, sys; print(json.dumps({seen}))"
    fields = {"num_replicas": 2, "env": {"ODD": 'it\'s a `b` "c"'}, "resource": Resource(cpu=1, gpu=0, memMB=64)}
    role = Role("main", str(site / "image"), entrypoint="python3", args=["-c", script, *odd], **fields)
    app_id = place.start(role, **options(site, container_mounts=["/data:/data:ro", "/usr"]))

    assert place.end(app_id).state is AppState.SUCCEEDED
    for k in (0, 1):
        bound, *words = call(site, k)
        assert bound == str(place.root / "apps" / app_id)
        assert words[:5] == ["exec", "--bind=/data:/data:ro", "--bind=/usr", str(site / "image"), "python3"]
        (line,) = place.scheduler.log_iter(app_id, "main", k)
        expected = ["it's", "$HOME", "a  b\n", "日本", "", str(k)]
        assert json.loads(line) == ['it\'s a `b` "c"', str(site / "image"), expected]


def test_gpus_reach_a_container(place: Place, site) -> None:
    role = place.sh("echo $CUDA_VISIBLE_DEVICES", resource=Resource(cpu=1, gpu=2, memMB=64))
    role.image = str(site / "image")
    app_id = place.start(role, **options(site))

    assert place.end(app_id).state is AppState.SUCCEEDED
    assert call(site)[1:3] == ["exec", "--nv"]
    assert len(next(place.scheduler.log_iter(app_id, "main")).split(",")) == 2


def test_code_retries_and_result_are_those_of_the_program(place: Place, site) -> None:
    script = "echo $LAUNCH_ATTEMPT; [ $LAUNCH_ATTEMPT = 1 ] || exit 7; echo '{}' >$LAUNCH_RESULT_PATH"
    role = place.sh(script, max_retries=1)
    role.image = str(site / "image")
    app_id = place.start(role, **options(site, working_dir="/usr"))

    assert place.end(app_id).state is AppState.SUCCEEDED
    assert [*place.scheduler.log_iter(app_id, "main")] == ["0\n", "1\n"]
    assert place.scheduler.result(app_id) == {}
    assert "--pwd=/usr" in call(site)


def test_a_container_is_stopped_with_its_grace(place: Place, site) -> None:
    role = place.sh("trap 'echo stopped; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    role.image = str(site / "image")
    app_id = place.start(role, **options(site))
    place.written(app_id, "up")
    place.scheduler.cancel(app_id)

    assert place.end(app_id).state is AppState.CANCELLED
    assert "stopped\n" in [*place.scheduler.log_iter(app_id, "main")]


def test_an_image_or_a_runtime_that_is_not_there_shows_in_the_log(place: Place, site) -> None:
    """The image or apptainer is missing: the user sees the reason."""
    role = place.sh("true")
    role.image = str(site / "none")
    without = {"container": "apptainer"}
    for cfg, code, text in ((options(site), 255, "could not open image"), (without, 127, "apptainer")):
        app_id = place.start(role, **cfg)
        found = place.end(app_id)

        assert (found.state, found.roles_statuses[0].replicas[0].exit_code) == (AppState.FAILED, code)
        assert text in "".join(place.scheduler.log_iter(app_id, "main"))
