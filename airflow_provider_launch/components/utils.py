"""Small apps: run a command or a program, copy a file."""

from __future__ import annotations

import shlex
import tempfile
from typing import Annotated

from airflow_provider_launch import specs
from airflow_provider_launch.components._torchrun import log_level
from airflow_provider_launch.settings import IMAGE

__all__ = ["binary", "booth", "copy", "echo", "hydra", "python", "sh", "touch"]


def echo(msg: str = "hello world", image: str = IMAGE, num_replicas: int = 1) -> specs.AppDef:
    """Write a message to stdout.

    Args:
        msg: the message
        image: image of the replicas
        num_replicas: how many replicas write it
    """
    return specs.AppDef(
        name="echo",
        roles=[
            specs.Role(
                name="echo",
                image=image,
                entrypoint="echo",
                args=[msg],
                num_replicas=num_replicas,
                resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
            )
        ],
    )


def touch(file: str, image: str = IMAGE) -> specs.AppDef:
    """Create an empty file, or update the time of an existing one.

    Args:
        file: path of the file
        image: image of the replica
    """
    return specs.AppDef(
        name="touch",
        roles=[
            specs.Role(
                name="touch",
                image=image,
                entrypoint="touch",
                args=[file],
                resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
            )
        ],
    )


def sh(
    *args: str,
    image: str = IMAGE,
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803 - a name of the launcher model
    h: str | None = None,
    env: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    entrypoint: str | None = None,
) -> specs.AppDef:
    """Run a command with sh, or run another program.

    Args:
        args: the command and its arguments; each is quoted for the shell
        image: image of the replicas
        num_replicas: how many replicas run it
        cpu: CPUs of a replica
        gpu: GPUs of a replica
        memMB: memory of a replica in MB
        h: a named resource, which overrides cpu, gpu and memMB
        env: variables of the replicas
        max_retries: how often the scheduler may start a failed app again
        mounts: mounts of the replicas, such as type=bind,src=/data,dst=/data,readonly
        entrypoint: a program that gets the arguments unchanged, instead of sh
    """
    return specs.AppDef(
        name="sh",
        roles=[
            specs.Role(
                name="sh",
                image=image,
                entrypoint=entrypoint or "sh",
                args=[*args] if entrypoint else ["-c", shlex.join(args)],
                env={"LOGLEVEL": log_level(), **(env or {})},
                num_replicas=num_replicas,
                max_retries=max_retries,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                mounts=[*specs.parse_mounts(mounts)] if mounts else [],
            )
        ],
    )


def python(
    *args: str,
    m: str | None = None,
    c: str | None = None,
    script: str | None = None,
    image: str = IMAGE,
    name: str = "launch_utils_python",
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803 - a name of the launcher model
    h: str | None = None,
    num_replicas: int = 1,
    mounts: list[str] | None = None,
) -> specs.AppDef:
    """Run a Python module, program text, or a script.

    Args:
        args: arguments of the program
        m: a module; give exactly one of m, c and script
        c: program text
        script: path of a script
        image: image of the replicas
        name: name of the app
        cpu: CPUs of a replica
        gpu: GPUs of a replica
        memMB: memory of a replica in MB
        h: a named resource, which overrides cpu, gpu and memMB
        num_replicas: how many replicas run it
        mounts: mounts of the replicas, such as type=bind,src=/data,dst=/data,readonly
    """
    given = [option for option in (["-m", m], ["-c", c], [script]) if option[-1]]
    if len(given) != 1:
        raise ValueError("give exactly one of `m` (a module), `c` (program text) and `script` (a path)")
    program = [part for part in given[0] if part]
    return specs.AppDef(
        name=name,
        roles=[
            specs.Role(
                name="python",
                image=image,
                entrypoint="python",
                args=[*program, *args],
                env={"HYDRA_MAIN_MODULE": m} if m else {},
                num_replicas=num_replicas,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                mounts=[*specs.parse_mounts(mounts)] if mounts else [],
            )
        ],
    )


def binary(
    *args: str,
    entrypoint: str,
    name: str = "launch_utils_binary",
    num_replicas: int = 1,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803 - a name of the launcher model
    h: str | None = None,
) -> specs.AppDef:
    """Run a program without an image.

    Args:
        args: arguments of the program
        entrypoint: the program
        name: name of the app
        num_replicas: how many replicas run it
        cpu: CPUs of a replica
        gpu: GPUs of a replica
        memMB: memory of a replica in MB
        h: a named resource, which overrides cpu, gpu and memMB
    """
    return specs.AppDef(
        name=name,
        roles=[
            specs.Role(
                name="binary",
                image=specs.NONE,
                entrypoint=entrypoint,
                args=[*args],
                num_replicas=num_replicas,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
            )
        ],
    )


def copy(src: str, dst: str, image: str = IMAGE, mounts: list[str] | None = None) -> specs.AppDef:
    """Copy one file between fsspec locations: `s3://bucket/key`, `/path`, `memory://key`.

    Args:
        src: the file
        dst: location of the copy
        image: image of the replica; it needs this package with the extra `fsspec`, and the store's own package
        mounts: mounts of the replica, such as type=bind,src=/data,dst=/data
    """
    return specs.AppDef(
        name="copy",
        roles=[
            specs.Role(
                name="copy",
                image=image,
                entrypoint="python",
                args=["-m", "airflow_provider_launch.apps.copy", "--src", src, "--dst", dst],
                resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
                mounts=[*specs.parse_mounts(mounts)] if mounts else [],
            )
        ],
    )


def booth(
    x1: float,
    x2: float,
    trial_idx: int = 0,
    tracker_base: str = f"{tempfile.gettempdir()}/launch-util-booth",
    image: str = IMAGE,
) -> specs.AppDef:
    """Evaluate Booth's function at a point, and store the result with the tracker: a trial run of a search.

    Args:
        x1: first coordinate
        x2: second coordinate
        trial_idx: number of the trial, the key of the result
        tracker_base: directory or fsspec location of the results
        image: image of the replica; it needs this package with the extra `fsspec`
    """
    return specs.AppDef(
        name="booth",
        roles=[
            specs.Role(
                name="booth",
                image=image,
                entrypoint="python",
                args=[
                    *("-m", "airflow_provider_launch.apps.booth", f"--x1={x1}", f"--x2={x2}"),
                    *(f"--trial_idx={trial_idx}", "--tracker_base", tracker_base),
                ],
                resource=specs.Resource(cpu=1, gpu=0, memMB=1024),
            )
        ],
    )


def hydra(
    *overrides: str,
    config_name: Annotated[str, "-cn"],
    config_dir: Annotated[str, "-cd"] = ".torchx",
) -> specs.AppDef:
    """Build the app that a Hydra config describes under `app`; `${launch.app_id:}` and so on are macros.

    Args:
        overrides: data (`app.roles.0.image=x`, or `+app.metadata.a=1` for a new key), or files of groups (`role=gpu`)
        config_name: name of the config
        config_dir: directory of the configs
    """
    from airflow_provider_launch.components._hydra import app_from_config

    return app_from_config(config_name, config_dir, overrides)
