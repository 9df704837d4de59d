"""Where the attempts and tries of a task find the checkpoints of earlier ones."""

from __future__ import annotations

import re

import pytest

from airflow_provider_launch._task.checkpoint_dir import directory_of, with_mounts, with_variables
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.specs import AppDef, BindMount, Role, VolumeMount
from airflow_provider_launch.specs.owner import TaskKey
from tests.airflow.support import FakeExecutionApi, launch, run_task, sh


def app(*mounts) -> AppDef:
    return AppDef("x", [Role("t", "i", entrypoint="x", mounts=[*mounts]), Role("u", "i", entrypoint="x")])


@pytest.mark.parametrize(
    ("task", "path"),
    [
        (("d", "manual_1", "t", -1), "s3://b/c/d/manual_1/t"),
        (("d", "manual_1", "t", 0), "s3://b/c/d/manual_1/t/0"),
        (("d", "a:b", "t", -1), r"s3://b/c/d/a-b-[0-9a-f]{8}/t"),
        (("..", "a", "t", -1), r"s3://b/c/dots-[0-9a-f]{8}/a/t"),
    ],
)
def test_each_task_has_its_own_directory(task, path) -> None:
    assert re.fullmatch(path, directory_of("s3://b/c/", TaskKey(*task)))


def test_names_that_look_alike_do_not_share_a_directory() -> None:
    runs = ["a:b", "a-b", "a b", "a+b", "a/b", "..", ".", "x" * 250]

    assert len({directory_of("/c", TaskKey("d", run, "t")) for run in runs}) == len(runs)


def test_docker_mounts_the_directory_unless_the_role_does() -> None:
    given = app(BindMount("/data", "/ckpt"))
    trainer, other = with_mounts(given, "/ckpt/runs", "docker", print).roles

    assert trainer.mounts == [BindMount("/data", "/ckpt")]
    assert other.mounts == [BindMount("/ckpt/runs", "/ckpt/runs")]
    assert given.roles[1].mounts == []
    assert with_mounts(given, "s3://bucket/runs", "docker", print) is given
    assert with_mounts(given, "/ckpt", "local", print) is given


@pytest.mark.parametrize("backend", ["kubernetes", "aws_batch"])
def test_a_directory_that_would_be_lost_gets_a_warning(backend: str) -> None:
    warned: list[str] = []

    def warn(text: str, *args: object) -> None:
        warned.append(text % args)

    with_mounts(app(VolumeMount("v", "/ckpt")), "/ckpt", backend, warn)
    both = AppDef("x", app(VolumeMount("v", "/ckpt")).roles[:1])
    assert with_mounts(both, "/ckpt", backend, warn) is both

    (text,) = warned
    assert text.startswith("role 'u': no mount of the role contains checkpoint_dir=/ckpt")


def test_the_number_of_the_try_does_not_make_another_app() -> None:
    """A retry continues with the app of the last try."""
    one, two = (with_variables(app(), {"LAUNCH_TRY": number}) for number in "12")

    assert spec_hash(one, {}) == spec_hash(two, {})
    assert spec_hash(one, {}) != spec_hash(with_variables(app(), {"LAUNCH_CHECKPOINT_DIR": "/x"}), {})


def test_variables_of_the_role_win_and_dollars_stay() -> None:
    given = AppDef("x", [Role("t", "i", entrypoint="x", env={"A": "mine"})])

    assert with_variables(given, {"A": "1", "B": "$x"}).roles[0].env == {"A": "mine", "B": "$$x"}
    assert given.roles[0].env == {"A": "mine"}


@pytest.mark.engine("local")
def test_each_try_finds_the_same_directory(tmp_path) -> None:
    script = 'echo "$LAUNCH_CHECKPOINT_DIR" "$LAUNCH_TRY" >> ' + str(tmp_path / "seen") + "; exit 3"
    api = FakeExecutionApi()
    for number in (1, 2):
        run_task(launch(sh(script), checkpoint_dir=f"{tmp_path}/{{{{ dag.dag_id }}}}"), api, try_number=number)

    path = f"{tmp_path}/test_dag/test_dag/test_run/t"
    assert (tmp_path / "seen").read_text().splitlines() == [f"{path} 1", f"{path} 2"]
