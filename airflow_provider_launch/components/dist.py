"""Distributed training with torchrun."""

from __future__ import annotations

from airflow_provider_launch import specs
from airflow_provider_launch.components._torchrun import (
    DEBUG_ENV,
    log_level,
    parse_nnodes,
    rdzv_endpoint,
    shell_command,
)
from airflow_provider_launch.components.structured_arg import StructuredJArgument, StructuredNameArgument
from airflow_provider_launch.settings import IMAGE
from airflow_provider_launch.specs.macros import macros

__all__ = ["ddp", "parse_nnodes", "spmd"]

_TORCH_DEBUG_FLAGS = DEBUG_ENV


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # noqa: N803 - a name of the launcher model
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = 0,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
    max_restarts: int = 0,
    retry_policy: str = "APPLICATION",
    local_ranks_filter: str | None = None,
    max_disruptions: int | None = None,
) -> specs.AppDef:
    """Distributed data parallel: run torchrun on several nodes, with rendezvous at replica 0.

    The image needs bash and torch.

    Args:
        script_args: arguments of the script or module
        script: the program; give script or m
        m: the module to run; give script or m
        image: image of the replicas
        name: `{experiment}/{run}`; the default run name is the name of the program
        h: a named resource, which overrides cpu, gpu and memMB
        cpu: CPUs of a replica
        gpu: GPUs of a replica
        memMB: memory of a replica in MB
        j: `[[min_nnodes:]nnodes x]nproc_per_node`: 2x4 runs four processes on each of two nodes, 2xgpu (or cpu, auto)
            as many as each has GPUs; min_nnodes needs a scheduler with elastic roles
        env: variables of the replicas
        metadata: metadata of the app
        max_retries: how often the scheduler may start a failed app again
        rdzv_port: port of the rendezvous on replica 0; 0 means that the scheduler chooses a free one, so that several
            apps can share a host
        rdzv_backend: backend of the rendezvous: c10d or static
        rdzv_conf: further settings of the rendezvous, as k1=v1,k2=v2
        mounts: mounts of the replicas, such as type=bind,src=/data,dst=/data,readonly
        debug: whether torch does more checks and logs more
        tee: streams of the processes that go to the log of the replica: 0 none, 1 stdout, 2 stderr, 3 both
        max_restarts: how often torchrun itself starts the processes of a node again, before the replica fails
        retry_policy: the replicas that `max_retries` starts again: APPLICATION, all of them, or REPLICA, only the
            failed one, which torchrun joins to the others again only with rdzv_backend c10d
        local_ranks_filter: processes of each node whose lines go to the log of the replica, such as 0 or 0,1
        max_disruptions: restarts after a lost node or a reclaimed host, which do not count as retries; refused where
            the scheduler cannot distinguish them from failures
    """
    names = StructuredNameArgument.parse_from(name, m, script)
    least, most, processes, nnodes = parse_nnodes(j)
    words = ["--rdzv_backend", rdzv_backend]
    if rdzv_conf:
        words += ["--rdzv_conf", rdzv_conf]
    words += ["--rdzv_id", macros.app_id, "--nnodes", nnodes, "--nproc_per_node", str(processes)]
    words += ["--tee", str(tee), "--role", ""]
    if max_restarts:
        words += ["--max_restarts", str(max_restarts)]
    if local_ranks_filter:
        words += ["--local_ranks_filter", local_ranks_filter]
    if rdzv_backend == "static":
        words += ["--node_rank", macros.replica_id]
    program = [script] if script else ["-m", str(m)]
    variables = {
        "TORCHX_TRACKING_EXPERIMENT_NAME": names.experiment_name,
        "TORCHX_TRACKING_RUN_NAME": names.run_name,
        "LOGLEVEL": log_level(),
        **(DEBUG_ENV if debug else {}),
        **(env or {}),
    }
    command = shell_command(
        *words, endpoint=rdzv_endpoint(most, rdzv_port, names.role_name, "c10d"), rest=[*program, *script_args]
    )
    return specs.AppDef(
        name=names.run_name,
        roles=[
            specs.Role(
                name=names.role_name,
                image=image,
                min_replicas=least,
                entrypoint="bash",
                args=["-c", command],
                env=variables,
                num_replicas=most,
                max_retries=max_retries,
                retry_policy=specs.RetryPolicy(retry_policy),
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                port_map={"c10d": rdzv_port},
                mounts=[*specs.parse_mounts(mounts)] if mounts else [],
                max_disruptions=max_disruptions,
            )
        ],
        metadata=dict(metadata or {}),
    )


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = IMAGE,
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
    max_disruptions: int | None = None,
) -> specs.AppDef:
    """Single program, multiple data: `dist.ddp` on hosts of one named resource.

    Args:
        args: arguments of the script or module
        script: the program; give script or m
        m: the module to run; give script or m
        image: image of the replicas
        name: `{experiment}/{run}`; the default run name is the name of the program
        h: a named resource
        j: `nnodes`, with one process for each GPU, or `nnodes x nproc_per_node`
        env: variables of the replicas
        metadata: metadata of the app
        max_retries: how often the scheduler may start a failed app again
        mounts: mounts of the replicas, such as type=bind,src=/data,dst=/data,readonly
        debug: whether torch does more checks and logs more
        max_disruptions: as for `dist.ddp`
    """
    # Imported here, so that `get_builtin_source` can return this function as a complete file.
    from airflow_provider_launch.components.dist import ddp

    return ddp(
        *args,
        script=script,
        m=m,
        image=image,
        name=name,
        h=h,
        j=str(StructuredJArgument.parse_from(h, j)),
        env=env,
        metadata=metadata,
        max_retries=max_retries,
        mounts=mounts,
        debug=debug,
        max_disruptions=max_disruptions,
    )
