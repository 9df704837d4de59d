"""Builds the request of an app: options of sbatch and srun, and the contents of role files. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_provider_launch.schedulers._kit.refusals import refuse_requests
from airflow_provider_launch.schedulers._kit.request import (
    NOT_STORED,
    AppRequest,
    RoleRequest,
    common_fields,
    format_app,
    format_role,
    is_seconds,
    request_from_json,
)
from airflow_provider_launch.schedulers.environment import (
    GPU_VARIABLES,
    RANK0_ENV,
    port_values,
    port_variable,
    refuse_equal_port_variables,
)
from airflow_provider_launch.schedulers.slurm.options import SlurmOpts, step_with_overlay, with_overlay
from airflow_provider_launch.schedulers.spec_hash import spec_hash
from airflow_provider_launch.settings import IMAGE
from airflow_provider_launch.specs.app_dict import app_to_dict
from airflow_provider_launch.specs.errors import InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.roles import AppDef, Role
from airflow_provider_launch.specs.secrets import masked_args, masked_env, masked_text
from airflow_provider_launch.specs.sentinels import NONE
from airflow_provider_launch.workspace.files import WorkspaceFiles, digests, workspaces_of

APP_DIR = "\0d"
"""Placeholder for the directory of the app, which only its job knows; texts of users never have this character."""
CHECK_S = 10
"""Interval in seconds at which a replica checks whether its app has ended without a signal to it."""
_GIVEN = ("SLURM_*", "SLURMD_*", "SBATCH_*", "SRUN_*", "PMI*", "OMPI_*", "HOSTNAME", *GPU_VARIABLES)
"""Variables that Slurm sets for replicas; a launcher inside a job must not copy its own."""
_OF_APPTAINER = frozenset({"HOME", "LD_LIBRARY_PATH", "PATH"})
"""Variables that apptainer sets in a container, whatever the host has:
https://apptainer.org/docs/user/main/environment_and_metadata.html"""
_MOUNTS_OF_APPTAINER = re.compile(
    "(APPTAINER|SINGULARITY)_(BIND|BINDPATH|MOUNT|DATA|HOME|WORKDIR|OVERLAY|OVERLAYIMAGE|CONTAINLIBS|FUSESPEC)"
)
"""Variables that mount directories of the node, as the option `container_mounts` does, which a connection may lock:
https://github.com/apptainer/apptainer/blob/main/cmd/internal/cli/action_flags.go"""
_OF_LOADER = frozenset({"LD_PRELOAD", "LD_AUDIT", "BASH_ENV"})
"""Variables with which apptainer, or a script of the site that starts it, runs code outside of the container.

Not `ENV`, which only interactive shells read, and which many programs use for the name of their environment."""
_OF_BASH = frozenset({
    "BASHOPTS", "BASHPID", "BASH_ARGV0", "BASH_COMMAND", "BASH_SUBSHELL", "BASH_VERSINFO", "DIRSTACK", "EPOCHREALTIME",
    "EPOCHSECONDS", "EUID", "FUNCNAME", "GROUPS", "LINENO", "PPID", "RANDOM", "SECONDS", "SHELLOPTS", "SRANDOM", "UID",
    "_",
})  # fmt: skip
"""Variables that bash sets itself, so that assignments have no effect."""


@dataclass
class SlurmRole(RoleRequest):
    """The contents of `role-<n>.sh`; `slug` is the directory of the role."""

    prologue: list[str]
    """Lines of bash between the variables and the program."""
    prefix: list[str]
    """Command that runs the container; empty if the program runs directly on the node."""
    img_root: str
    """Value of the macro."""


@dataclass
class SlurmRequest(AppRequest[SlurmRole]):
    """All data to run the app, as stored in `app.json`; a port 0 is chosen at the start."""

    components: list[list[str]]
    """Options of sbatch; more than one list make a heterogeneous job."""
    steps: list[list[str]]
    """Options of srun for each component."""
    order: list[int]
    """Numbers of the roles, in the order of their tasks."""
    comment: str
    grace_s: float
    signal: str
    signal_s: float | None
    requeue: bool
    """Whether Slurm puts the job back into its queue after a disruption."""
    login_shell: bool
    max_disruptions: int | None = None
    """Disruptions after which Slurm may put the job back. None: each one, if `requeue`."""
    workspaces: dict[str, WorkspaceFiles] = field(default_factory=dict, metadata=NOT_STORED)
    """Name of a directory of the app to the files that are copied there at submission."""


def build_request(app: AppDef, opts: SlurmOpts, app_id: str, environ: Mapping[str, str]) -> SlurmRequest:
    """Return the request for `app`, which is left as it is.

    Refuses features that Slurm lacks, and options or variables that cannot be used.
    """
    refuse_equal_port_variables(app)
    _refuse_mixed_retries(app)
    for role in app.roles:
        _refuse_unusable(role, opts)
    workspaces = workspaces_of(app.roles, opts.workspace_max_mb)
    # Slurm restarts all roles together, so the lowest bound holds.
    bounds = [role.max_disruptions for role in app.roles if role.max_disruptions is not None]
    max_disruptions = min(bounds, default=None)
    requeue = opts.on_disruption == "retry" if max_disruptions is None else max_disruptions > 0
    groups = _components(app.roles, by_image=opts.container == "pyxis")
    if requeue and len(groups) > 1:
        _refuse_requeue(app, opts)
    components, steps = [], []
    for number, members in enumerate(groups):
        needs = _needs(app.roles[members[0]], sum(app.roles[at].num_replicas for at in members), opts)
        # Components need different names: jobs with the same name wait for each other, by `singleton`.
        name = app_id if number == 0 else f"{app_id}+{number}"
        limits = _limits(opts, requeue=requeue)
        components.append(with_overlay([f"--job-name={name}", *needs, *_placement(opts), *limits], opts.overlay))
        step = [*step_with_overlay([*needs, *_binding(app.roles[members[0]], opts)], opts.overlay)]
        step += _container(app.roles[members[0]], opts)
        steps.append([f"--het-group={number}", *step] if len(groups) > 1 else step)
    return SlurmRequest(
        app_id=app_id,
        name=app.name,
        spec_hash=spec_hash(app, opts, digests(workspaces)),
        ports={port_variable(role.name, name): port for role in app.roles for name, port in role.port_map.items()},
        time_limit_s=opts.time_limit_s,
        roles=[
            _role(number, role, opts, environ, workspaces[role.workspace][0] if role.workspace else "")
            for number, role in enumerate(app.roles)
        ],
        app=app_to_dict(app),
        components=components,
        steps=steps,
        order=[at for members in groups for at in members],
        comment=opts.comment or "",
        grace_s=opts.grace_s,
        signal=opts.signal,
        signal_s=opts.signal_s,
        requeue=requeue,
        max_disruptions=max_disruptions,
        login_shell=bool(opts.setup),
        workspaces=dict(workspaces.values()),
    )


def request_from(document: Mapping[str, object]) -> SlurmRequest:
    """Return the request of a document of `to_json`; an error of any type means that it has another shape."""
    request = request_from_json(SlurmRequest, SlurmRole, document)
    if any(set(role.slug) & {"/", "\n"} for role in request.roles):
        raise ValueError("a directory of a role is not a name")
    if not all(map(is_seconds, (request.grace_s, request.signal_s))) or request.grace_s is None:
        raise ValueError("a number has another type")
    return request


def format_request(request: SlurmRequest) -> str:
    """Return the request for people, with secrets masked."""
    command = " : ".join(shlex.join(masked_args(options)) for options in request.components)
    lines = [
        format_app(request.app_id, request.name, f", grace {request.grace_s:g} s", request.time_limit_s),
        f"sbatch {command} launch.sh",
        *(f"copied to {name}: {files}" for name, files in request.workspaces.items()),
        *(f"port {name}: {port or 'chosen at start'}" for name, port in request.ports.items()),
    ]
    rounded = {
        role.name: [f"cpu={cpu:g} is rounded up to {math.ceil(cpu)}, because Slurm allocates whole CPUs"]
        for role in request.app_def.roles
        if (cpu := role.resource.cpu) != math.ceil(cpu)
    }
    for role in request.roles:
        values = macros.Values(
            role.img_root.replace(APP_DIR, "<app>"),
            request.app_id,
            "<replica>",
            RANK0_ENV,
            rank0_host="<rank 0>",
            ports=port_values(request.app_def.roles, lambda variable, port: str(port or f"<{variable}>")),
        )
        args = [values.substitute(arg) for arg in role.args]
        env = {name: values.substitute(text) for name, text in role.env.items()}
        lines += format_role(
            role.name,
            role.num_replicas,
            shlex.join(masked_args(role.prefix)).replace(APP_DIR, "<app>") or "on nodes",
            policy=role.policy,
            max_retries=role.max_retries,
            details=[
                *rounded.get(role.name, []),
                *map(masked_text, role.prologue),
                shlex.join([role.program, *masked_args(args)]),
                *(f"  {name}={shlex.quote(value)}" for name, value in sorted(masked_env(env).items())),
            ],
        )
    return "\n".join(lines)


def _components(roles: Sequence[Role], *, by_image: bool) -> list[list[int]]:
    """Return the numbers of the roles, grouped by equal resources, and by image if srun itself starts it.

    Use as few components as possible: each has its own nodes, and a job with more of them waits longer.
    """
    groups: dict[tuple[float, int, int, str], list[int]] = {}
    for at, role in enumerate(roles):
        image = role.image if by_image else ""
        groups.setdefault((math.ceil(role.resource.cpu), role.resource.gpu, role.resource.memMB, image), []).append(at)
    return list(groups.values())


def _needs(role: Role, tasks: int, opts: SlurmOpts) -> list[str]:
    cpus = max(math.ceil(role.resource.cpu), 1)
    needs = [f"--ntasks={tasks}", f"--cpus-per-task={cpus}"]
    if role.resource.memMB > 0 and not any((opts.overlay or {}).get(name) for name in ("mem", "mem-per-gpu")):
        # The memory of a task, whereas `--mem` is the memory of a node. sbatch accepts only one of them.
        needs.append(f"--mem-per-cpu={math.ceil(role.resource.memMB / cpus)}M")
    if role.resource.gpu > 0:
        kind = f"{opts.gpu_type}:" if opts.gpu_type else ""
        needs.append(f"--gpus-per-task={kind}{role.resource.gpu}")
    return needs


def _binding(role: Role, opts: SlurmOpts) -> list[str]:
    """Return the option of srun that gives each replica its own GPUs.

    Slurm binds GPUs by itself only without a GPU type. With a type all replicas would use the first GPU.
    """
    if role.resource.gpu <= 0 or not opts.gpu_type or (opts.overlay or {}).keys() & {"gpu-bind", "tres-bind"}:
        return []
    return [f"--gpu-bind=per_task:{role.resource.gpu}"]


def _container(role: Role, opts: SlurmOpts) -> list[str]:
    """Return the options of srun for pyxis. Our script runs inside, so mount the directory of the app."""
    if opts.container != "pyxis":
        return []
    mounts = ",".join([f"{APP_DIR}:{APP_DIR}", *(opts.container_mounts or [])])
    return [f"--container-image={role.image}", f"--container-mounts={mounts}", f"--container-workdir={APP_DIR}"]


def _placement(opts: SlurmOpts) -> list[str]:
    names = (
        "partition", "account", "qos", "reservation", "constraint", "nodelist", "exclude", "mail_user", "mail_type",
    )  # fmt: skip
    options = [f"--{name.replace('_', '-')}={value}" for name in names if (value := getattr(opts, name))]
    return [*options, "--exclusive"] if opts.exclusive else options


def _limits(opts: SlurmOpts, *, requeue: bool) -> list[str]:
    limits = ["--requeue" if requeue else "--no-requeue"]
    if opts.time_limit_s is not None:
        # A fallback after our own limit, rounded up because Slurm counts minutes.
        limits.append(f"--time={math.ceil((opts.time_limit_s + opts.grace_s) / 60) + 1}")
    return limits


def _role(number: int, role: Role, opts: SlurmOpts, environ: Mapping[str, str], workspace: str) -> SlurmRole:
    image = "" if role.image in {NONE, IMAGE} else role.image
    prologue, prefix = [], []
    if opts.container == "pyxis":
        start = f'"$launch_dir/{workspace}"' if workspace else "/"
        prologue.append(f"cd -- {start} || exit 126")
    elif opts.container:
        # Bind the directory of the app to the same path, for result and error.
        prologue.append('export APPTAINER_BINDPATH="${launch_at%/run/*}"')
        prefix += ["apptainer", "exec", *(["--nv"] if role.resource.gpu > 0 else [])]
        prefix += [f"--bind={mount}" for mount in opts.container_mounts or []]
        working_dir = opts.working_dir or (f"{APP_DIR}/{workspace}" if workspace else None)
        prefix += [*([f"--pwd={working_dir}"] if working_dir else []), image]
    elif workspace:
        # The workspace replaces the image directory.
        prologue += [f'cd -- "$launch_dir/{workspace}" || exit 126', 'PATH="$PATH:$PWD"']
    elif image:
        # A relative path is below the home directory.
        prologue += ["cd", f"cd -- {shlex.quote(image)} || exit 126", 'PATH="$PATH:$PWD"']
    else:
        prologue.append("cd")
    if opts.working_dir and opts.container != "apptainer":
        prologue.append(f"cd -- {shlex.quote(opts.working_dir)} || exit 126")
    slug = f"{number}-" + re.sub(r"[^A-Za-z0-9_-]+", "-", role.name)[:40]
    fields = common_fields(role, slug, environ, opts.copy_env, _GIVEN)
    img_root = f"{APP_DIR}/{workspace}" if workspace else "" if opts.container else image
    return SlurmRole(**fields, prologue=[*prologue, *_setup(opts)], prefix=prefix, img_root=img_root)


def _setup(opts: SlurmOpts) -> list[str]:
    """Return the lines of the option `setup`.

    A trap catches failures, because a command may have several lines. It ignores commands in files that these lines
    source.
    """
    if not opts.setup or opts.on_setup_failure == "continue":
        return opts.setup or []
    handler = """trap 'launch_setup_failed "$?" "$BASH_COMMAND" "${#BASH_SOURCE[@]}"' ERR"""
    return [handler, *opts.setup, "trap - ERR"]


def _refuse_mixed_retries(app: AppDef) -> None:
    """Refuse mixed retry policies, because the job's script counts retries exactly only for one policy."""
    policies = {role.retry_policy: role.name for role in app.roles if role.max_retries}
    if len(policies) > 1:
        named = " and ".join(f"role {name!r} has {policy.value}" for policy, name in policies.items())
        raise UnsupportedError(f"'slurm' has one retry policy per app, but {named}; give all roles the same")


def _refuse_requeue(app: AppDef, opts: SlurmOpts) -> None:
    """Refuse restarts of a heterogeneous job: Slurm puts only the component with the lost node back into its queue."""
    bounded = [role.name for role in app.roles if role.max_disruptions]
    what = f"role {bounded[0]!r}: max_disruptions" if bounded else "option on_disruption='retry'"
    same = "resource and image" if opts.container == "pyxis" else "resource"
    raise UnsupportedError(
        f"{what} is not offered by 'slurm' for roles that differ in their {same}, because Slurm puts back only one "
        f"component of a heterogeneous job; give all roles the same {same}, or leave it out"
    )


def _refuse_unusable(role: Role, opts: SlurmOpts) -> None:
    refuse_requests(role, "slurm")
    if role.resource.devices:
        raise UnsupportedError(
            f"role {role.name!r}: resource.devices ({', '.join(role.resource.devices)}) are not offered by 'slurm'; "
            f"ask for them by the option overlay, as `gres`"
        )
    if opts.container and role.image in {"", NONE, IMAGE}:
        raise InvalidAppError(f"role {role.name!r}: image is empty, but option container needs one; name an image")
    if opts.container and role.image.startswith("-"):
        # As an option of apptainer it could mount the root of the node.
        raise InvalidAppError(f"role {role.name!r}: {role.image!r} is not an image, because it starts with '-'")
    for name in role.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) or name.startswith("launch_"):
            raise InvalidAppError(
                f"role {role.name!r}: env: {name!r} cannot be set by a shell script; use letters, digits and '_', "
                f"and a name that does not start with 'launch_'"
            )
        if name in _OF_BASH:
            raise InvalidAppError(f"role {role.name!r}: env: {name!r} is a variable of bash itself; rename it")
        if opts.container == "apptainer" and name in _OF_APPTAINER:
            raise InvalidAppError(
                f"role {role.name!r}: env: apptainer sets {name!r} itself; set it in the image or the program"
            )
        if opts.container == "apptainer" and _MOUNTS_OF_APPTAINER.fullmatch(name):
            raise InvalidAppError(
                f"role {role.name!r}: env: {name!r} mounts directories into the container; use the option "
                f"container_mounts"
            )
        if opts.container == "apptainer" and name in _OF_LOADER:
            raise InvalidAppError(
                f"role {role.name!r}: env: {name!r} acts on apptainer itself, outside of the container; use "
                f"APPTAINERENV_{name} for the program"
            )
