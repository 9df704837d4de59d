"""The request for Slurm: options of sbatch and srun, and the files that the job reads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_launch.schedulers.slurm.options import SlurmConnection, SlurmOpts
from airflow_provider_launch.schedulers.slurm.request import build_request, format_request, request_from
from airflow_provider_launch.schedulers.slurm.script import app_files
from airflow_provider_launch.settings import IMAGE
from airflow_provider_launch.specs import AppDef, Resource, RetryPolicy, Role, macros
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError

GOLDEN = Path(__file__).parent / "golden"
TRAINER = Role(
    "trainer",
    image="/apps/train",
    entrypoint="python",
    args=["-m", "train", "--rank", macros.replica_id, "--app", macros.app_id, "it's $$5"],
    env={"TOKEN": "hush-hush", "WHO": f"{macros.replica_id}@{macros.rank0_env}"},
    num_replicas=3,
    max_retries=2,
    resource=Resource(cpu=4, gpu=2, memMB=16_001),
    port_map={"master": 0, "web": 8080},
)
DRIVER = Role("Über driver", image="", entrypoint="./drive", resource=Resource(cpu=1, gpu=0, memMB=512))
DRIVER_IN_IMAGE = Role("driver", image="ubuntu", entrypoint="true", resource=TRAINER.resource)
OPTIONS: dict[str, Any] = {
    "partition": "gpu",
    "account": "research",
    "gpu_type": "a100",
    "exclusive": True,
    "setup": ["module load cuda"],
    "time_limit_s": 3600.0,
    "signal_s": 60.0,
    "overlay": {"nice": 100, "licenses": ["a", "b"], "exclusive": None},
}


def request(*roles: Role, **options: Any):
    return build_request(AppDef("demo", [*roles]), SlurmOpts(**options), "demo-1", {"HF_HOME": "/hf", "X": "y"})


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("one_role", request(DRIVER)),
        ("two_roles", request(TRAINER, DRIVER, **OPTIONS)),
        ("equal_roles", request(DRIVER, Role("b", "", entrypoint="true", resource=DRIVER.resource))),
        ("container", request(TRAINER, container="apptainer", container_mounts=["/data:/data:ro"], copy_env=["HF_*"])),
        ("pyxis", request(TRAINER, DRIVER_IN_IMAGE, container="pyxis", container_mounts=["/data:/data:ro"])),
    ],
)
def test_golden(name, built) -> None:
    """After an intended change remove the file; the test then writes it again."""
    contents = app_files(built, "instance")
    shown = {"dry run": format_request(built), **{key: contents[key] for key in sorted(contents) if key[-1] != "n"}}
    shown |= {"plan": contents["plan"]}
    shown = {key: text for key, text in shown.items() if key not in {"launch.sh", "replica.sh"}}
    text = "\n".join(f"==== {key}\n{value}" for key, value in shown.items())
    file = GOLDEN / f"{name}.txt"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        pytest.fail(f"{file} was missing and is written; look at it, and run the test again")

    assert text == file.read_text(encoding="utf-8")


def test_a_request_survives_json() -> None:
    built = request(TRAINER, DRIVER, **OPTIONS)

    assert request_from(built.to_json()) == built


def test_secrets_are_in_no_command_line_and_not_shown() -> None:
    built = request(TRAINER)

    assert "hush-hush" not in repr((built.components, built.steps))
    assert "hush-hush" not in format_request(built)


def test_the_files_are_bash(tmp_path) -> None:
    for name, text in app_files(request(TRAINER, DRIVER, **OPTIONS), "instance").items():
        if name.endswith(".sh") or name == "plan":
            (tmp_path / name).write_text(text)
            subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"overlay": {"hold": True}}, "hold"),
        ({"overlay": {"--nice": 1}}, "--nice"),
        ({"overlay": {"nice": {}}}, "nice"),
        ({"container": "apptainer"}, "image"),
    ],
)
def test_options_that_cannot_be_are_refused(options, word) -> None:
    with pytest.raises(InvalidAppError, match=word):
        request(DRIVER, **options)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        *((name, "slurm_conf or ssh_host") for name in ("clusters", "cluster-constraint", "clus")),
        *((name, "submits nothing") for name in ("help", "usage", "version", "vers", "test-only", "test")),
        *((name, "set by the scheduler") for name in ("hold", "hol", "job", "gpus-per-task", "wait", "comm")),
    ],
)
def test_an_overlay_does_not_decide_where_or_whether_the_job_is_submitted(name, cure) -> None:
    """sbatch also accepts a prefix of a name."""
    with pytest.raises(InvalidAppError, match=cure):
        request(DRIVER, overlay={name: "b"})


@pytest.mark.parametrize("name", ["gpus", "wait-all-nodes", "mem", "time", "nice"])
def test_an_option_that_is_like_one_of_ours_is_passed_on(name) -> None:
    assert f"--{name}=1" in request(DRIVER, overlay={name: 1}).components[0]


@pytest.mark.parametrize(
    ("role", "options", "container"),
    [
        (Role("a", IMAGE, entrypoint="true"), {}, False),
        (Role("a", IMAGE, entrypoint="true"), {"container": "apptainer"}, True),
    ],
)
def test_the_image_of_builtin_components_is_no_directory(role, options, container) -> None:
    """An image of this name does not exist: without a container it is not needed, with one it is required."""
    if container:
        with pytest.raises(InvalidAppError, match="name an image"):
            request(role, **options)
    else:
        assert request(role).roles[0].prologue == ["cd"]


@pytest.mark.parametrize("name", ["A-B", "launch_k", "UID", "1X", "Ä"])
def test_variables_that_a_shell_cannot_set_are_refused(name) -> None:
    with pytest.raises(InvalidAppError, match=name):
        request(Role("a", "", entrypoint="true", env={name: "1"}))


@pytest.mark.parametrize("name", ["PATH", "HOME", "LD_LIBRARY_PATH"])
def test_variables_that_apptainer_replaces_are_refused_with_it(name) -> None:
    role = Role("a", "/a.sif", entrypoint="true", env={name: "/x"})

    assert request(role).roles
    with pytest.raises(InvalidAppError, match=f"apptainer sets '{name}' itself"):
        request(role, container="apptainer")


@pytest.mark.parametrize(
    "name",
    ["APPTAINER_BIND", "APPTAINER_BINDPATH", "SINGULARITY_MOUNT", "APPTAINER_HOME", "SINGULARITY_WORKDIR",
     "APPTAINER_OVERLAY", "APPTAINER_CONTAINLIBS", "APPTAINER_FUSESPEC", "APPTAINER_DATA"],
)  # fmt: skip
def test_variables_do_not_mount_directories(name) -> None:
    """A connection may lock the option, and a run may choose the app."""
    role = Role("a", "/image.sif", entrypoint="true", env={name: "/:/host"})

    with pytest.raises(InvalidAppError, match=f"'{name}' mounts directories into the container; use the option"):
        request(role, container="apptainer")
    assert request(role).roles


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "BASH_ENV"])
def test_variables_do_not_run_code_outside_of_the_container(name) -> None:
    role = Role("a", "/image.sif", entrypoint="true", env={name: "${img_root}/evil.so"})

    with pytest.raises(InvalidAppError, match=f"'{name}' acts on apptainer itself.*; use APPTAINERENV_{name} for"):
        request(role, container="apptainer")
    assert request(role).roles
    assert request(role, container="pyxis").roles


@pytest.mark.parametrize("name", ["ENV", "LD_BIND_NOW", "APPTAINERENV_LD_PRELOAD", "APPTAINER_CACHEDIR", "PYTHONPATH"])
def test_other_variables_reach_the_container(name) -> None:
    role = Role("a", "/image.sif", entrypoint="true", env={name: "x"})

    assert request(role, container="apptainer").roles[0].env[name] == "x"


@pytest.mark.parametrize("container", ["apptainer", "pyxis"])
def test_an_image_is_not_an_option(container) -> None:
    with pytest.raises(InvalidAppError, match="'--bind=/:/host' is not an image"):
        request(Role("a", "--bind=/:/host", entrypoint="/other.sif"), container=container)


@pytest.mark.parametrize(("name", "path"), [("root", "launch"), ("mount", "./x"), ("root", "/a\nb")])
def test_invalid_paths_are_refused(name, path) -> None:
    with pytest.raises(ValueError, match=name):
        SlurmConnection(**{name: path})


def test_two_retry_policies_in_one_app_are_refused() -> None:
    """Counts are exact only for one policy per app."""
    a, b = (Role(name, "", entrypoint="true", max_retries=1) for name in "ab")
    b.retry_policy = RetryPolicy.REPLICA

    with pytest.raises(UnsupportedError, match=r"one retry policy.*role 'a' has APPLICATION and role 'b' has REPLICA"):
        request(a, b)


@pytest.mark.parametrize("metadata", [{"x": "y" * (9 << 20)}, {"x": 10**30}, {"x": "," * 200_001}])
def test_an_app_whose_record_could_not_be_read_again_is_refused(metadata) -> None:
    built = build_request(AppDef("demo", [DRIVER], metadata), SlurmOpts(), "demo-1", {})
    with pytest.raises(InvalidAppError, match="cannot be recorded"):
        app_files(built, "instance")


@pytest.mark.parametrize(
    ("options", "expected"), [({}, "8f05f313beb5b4c8"), ({"setup": ["module load cuda"]}, "a0f59e5f8ac51027")]
)
def test_an_option_that_came_later_makes_no_other_app(options, expected):
    """After an upgrade a new try must find the app of the previous try."""
    app = AppDef("app", [Role("main", "/apps", entrypoint="true")])

    assert build_request(app, SlurmOpts(**options), "app-1", {}).spec_hash == expected
    changed = SlurmOpts(**options, on_setup_failure="continue")
    assert build_request(app, changed, "app-1", {}).spec_hash != expected


def test_fractions_of_a_cpu_are_rounded_up_and_shown() -> None:
    made = request(Role("half", "", entrypoint="true", resource=Resource("500m", 0, 512)))
    mixed = request(
        *(Role(name, "", entrypoint="true", resource=Resource(cpu, 0, 512)) for name, cpu in (("a", 0.5), ("b", 1)))
    )

    assert "--cpus-per-task=1" in made.components[0]
    assert "--mem-per-cpu=512M" in made.components[0]
    assert "cpu=0.5 is rounded up to 1" in format_request(made)
    assert len(mixed.components) == 1


@pytest.mark.parametrize("field", ["cpu_request", "memMB_request"])
def test_a_reservation_below_the_limit_is_refused(field: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"'half': resource.{field} is not offered by 'slurm'.*leave it out"):
        request(Role("half", "", entrypoint="true", resource=Resource(1, 0, 512, **{field: 1})))
