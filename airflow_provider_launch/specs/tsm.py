"""Fluent builders of apps, and the session that launches them, with the interface of TSM.

```python
Application("train").of(Role("trainer").runs("train.py", "--lr", "0.1").on(Container("repo/train:1")).replicas(4))
```

`build` turns these builders into the model of `specs`; no other module uses them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs import roles as specs_roles
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import InvalidAppError, SessionMismatchException
from airflow_provider_launch.specs.handles import parse_app_handle
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.resources import NULL_RESOURCE, Resource
from airflow_provider_launch.specs.roles import AppDef, RetryPolicy
from airflow_provider_launch.specs.runopts import CfgVal, runopts
from airflow_provider_launch.specs.sentinels import ALL, MISSING, NONE, AppHandle
from airflow_provider_launch.specs.states import AppState
from airflow_provider_launch.specs.statuses import AppStatus, ReplicaStatus

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from typing_extensions import Self

    from airflow_provider_launch.runner import Runner

SchedulerBackend = str
ConfigValue = CfgVal

_DEFAULT = "default"
_RDZV_PORT = 29500


@dataclass
class Container:
    """An image, the resources it needs on each scheduler, and its ports."""

    image: str
    resources: dict[SchedulerBackend, Resource] = field(default_factory=dict)
    port_map: dict[str, int] = field(default_factory=dict)

    def require(self, resource: Resource, scheduler: SchedulerBackend = ALL) -> Self:
        """Set the resource for a scheduler, or for all schedulers without their own."""
        self.resources[scheduler] = resource
        return self

    def ports(self, **kwargs: int) -> Self:
        """Add ports by name."""
        self.port_map.update(kwargs)
        return self

    def resource_on(self, scheduler: SchedulerBackend) -> Resource:
        """Return the resource for a scheduler; `NULL_RESOURCE` if none was set."""
        found = self.resources.get(scheduler, self.resources.get(ALL, NULL_RESOURCE))
        # A copy: one container may serve several roles.
        return Resource.copy(found)


NULL_CONTAINER = Container(image=NONE)
"""The container of a role before `on` was called."""


@dataclass
class Role:
    """A group of equal replicas; each method returns the role, so that calls can be chained."""

    name: str
    entrypoint: str = MISSING
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    container: Container = field(default_factory=lambda: NULL_CONTAINER)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION

    def runs(self, entrypoint: str, *args: str, **kwargs: str) -> Self:
        """Set the program, its arguments and its variables."""
        self.entrypoint = entrypoint
        self.args += [*args]
        self.env.update(kwargs)
        return self

    def on(self, container: Container) -> Self:
        """Set the container of the replicas."""
        self.container = container
        return self

    def replicas(self, replicas: int) -> Self:
        """Set the number of replicas."""
        self.num_replicas = replicas
        return self

    def with_retry_policy(self, retry_policy: RetryPolicy, max_retries: int) -> Self:
        """Set which replicas restart when one fails, and how often."""
        self.retry_policy, self.max_retries = retry_policy, max_retries
        return self

    def build(self, scheduler: SchedulerBackend = ALL) -> specs_roles.Role:
        """Return the role of the `specs` model, with the resource for a scheduler.

        Raises:
            InvalidAppError: the role has no container.
        """
        if self.container == NULL_CONTAINER:
            raise InvalidAppError(f"role {self.name!r} has no container; add `.on(Container(image=...))`")
        return specs_roles.Role(
            name=self.name,
            image=self.container.image,
            entrypoint=self.entrypoint,
            args=[*self.args],
            env={**self.env},
            num_replicas=self.num_replicas,
            max_retries=self.max_retries,
            retry_policy=self.retry_policy,
            resource=self.container.resource_on(scheduler),
            port_map={**self.container.port_map},
        )


class ElasticRole(Role):
    """A role whose replicas run a script under torchrun, with rendezvous at replica 0 of the first role.

    Args:
        name: its name.
        **launch_kwargs: options of torchrun: `nproc_per_node=8` becomes `--nproc_per_node 8`, True becomes a flag,
            False is left out. `nnodes` is the number of replicas unless given.
    """

    def __init__(self, name: str, **launch_kwargs: Any) -> None:
        super().__init__(name)
        self.torchrun = {"rdzv_backend": "c10d", "rdzv_id": macros.app_id, "role": name, **launch_kwargs}

    def runs(self, script: str, *args: str, **kwargs: str) -> Self:  # type: ignore[override]  # a name of TSM
        """Set the script, its arguments and its variables; a relative path starts at the root of the image."""
        if not posixpath.isabs(script) and not script.startswith(macros.img_root):
            script = posixpath.join(macros.img_root, script)
        return super().runs(script, *args, **kwargs)

    def build(self, scheduler: SchedulerBackend = ALL) -> specs_roles.Role:
        """Return the role with torchrun as its program; see `Role.build`."""
        from airflow_provider_launch.components._torchrun import rdzv_endpoint, shell_command

        role = super().build(scheduler)
        options = {"nnodes": self.num_replicas, **self.torchrun}
        most = int(str(options["nnodes"]).rpartition(":")[2])
        given = options.pop("rdzv_endpoint", None)
        port = role.port_map.get("c10d", _RDZV_PORT)
        if most > 1 and given is None:
            role.port_map.setdefault("c10d", port)
        words = ["--rdzv_backend", str(options.pop("rdzv_backend")), "--rdzv_id", str(options.pop("rdzv_id"))]
        for key, value in options.items():
            if value is not False:
                words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        endpoint = given or rdzv_endpoint(most, port, self.name, "c10d")
        command = shell_command(*words, endpoint=endpoint, rest=[self.entrypoint, *role.args])
        role.entrypoint, role.args = "bash", ["-c", command]
        return role


@dataclass
class Application:
    """A distributed app: a name and its roles."""

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def of(self, *roles: Role) -> Self:
        """Add roles."""
        self.roles += [*roles]
        return self

    def build(self, scheduler: SchedulerBackend = ALL) -> AppDef:
        """Return the app of the `specs` model, with the resources for a scheduler.

        Raises:
            InvalidAppError: a role has no container.
        """
        return AppDef(self.name, [role.build(scheduler) for role in self.roles], {**self.metadata})


class RunConfig(Mapping[str, ConfigValue]):
    """Options of one launch, accepted wherever a cfg is."""

    def __init__(self, cfgs: Mapping[str, ConfigValue] | None = None) -> None:
        self.cfgs: dict[str, ConfigValue] = {**(cfgs or {})}

    def set(self, cfg_key: str, cfg_val: ConfigValue) -> None:
        """Set an option."""
        self.cfgs[cfg_key] = cfg_val

    def __getitem__(self, cfg_key: str) -> ConfigValue:
        return self.cfgs[cfg_key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.cfgs)

    def __len__(self) -> int:
        return len(self.cfgs)

    def __repr__(self) -> str:
        return repr(self.cfgs)


class Session:
    """Launches apps under a session name, and stops only apps of that session.

    Args:
        name: part of every handle.
        runner: the runner to use. None: a new one with all schedulers.
    """

    def __init__(self, name: str, runner: Runner | None = None) -> None:
        if runner is None:
            from airflow_provider_launch.runner import Runner

            runner = Runner(name, check_session=True)
        self._name = name
        self._runner = runner
        self._apps: dict[AppHandle, AppDef] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the schedulers; may be called again."""
        self._runner.close()

    def name(self) -> str:
        """Return the name of the session."""
        return self._name

    def run(
        self,
        app: Application | AppDef,
        scheduler: SchedulerBackend = _DEFAULT,
        cfg: Mapping[str, ConfigValue] | None = None,
    ) -> AppHandle:
        """Launch an app and return its handle; `default` is the first scheduler."""
        return self.schedule(self.dryrun(app, scheduler, cfg))

    def dryrun(
        self,
        app: Application | AppDef,
        scheduler: SchedulerBackend = _DEFAULT,
        cfg: Mapping[str, ConfigValue] | None = None,
    ) -> AppDryRunInfo[Any]:
        """Return the request that `schedule` would send."""
        name = self._backend(scheduler)
        return self._runner.dryrun(app.build(name) if isinstance(app, Application) else app, name, cfg)

    _dryrun = dryrun

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> AppHandle:
        """Send the request and return the handle of the app."""
        handle = self._runner.schedule(dryrun_info)
        if dryrun_info.app is not None:
            self._apps[handle] = dryrun_info.app
        return handle

    def run_opts(self) -> dict[SchedulerBackend, runopts]:
        """Return the options of each scheduler."""
        return {name: self._runner.scheduler_run_opts(name) for name in self.scheduler_backends()}

    def scheduler_backends(self) -> list[SchedulerBackend]:
        """Return the names of the schedulers, the default one first."""
        return self._runner.scheduler_backends()

    def status(self, app_handle: AppHandle) -> AppStatus | None:
        """Return the current status of the app; None if it does not exist."""
        return self._runner.status(app_handle)

    def wait(self, app_handle: AppHandle, wait_interval: float = 10) -> AppStatus | None:
        """Wait until the app has ended, and return its status; None if its record is gone."""
        return self._runner.wait(app_handle, wait_interval)

    def list(self) -> dict[AppHandle, AppDef]:
        """Return the apps that this session launched and whose records still exist."""
        self._apps = {handle: app for handle, app in self._apps.items() if self._runner.status(handle) is not None}
        return {**self._apps}

    def stop(self, app_handle: AppHandle) -> None:
        """Ask the app to end.

        Raises:
            SessionMismatchException: another session launched it.
        """
        self._refuse_other(app_handle)
        self._runner.cancel(app_handle)

    def describe(self, app_handle: AppHandle) -> AppDef | None:
        """Return the app as it was launched; None if it does not exist."""
        return self._runner.describe(app_handle)

    def log_lines(
        self,
        app_handle: AppHandle,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterable[str]:
        """Return the lines of one replica; without `until`, follow them until the app has ended.

        Raises:
            SessionMismatchException: another session launched the app.
            UnknownAppException: the app does not exist.
        """
        self._refuse_other(app_handle)
        return self._runner.log_lines(app_handle, role_name, k, regex, since, until, should_tail=until is None)

    def _backend(self, scheduler: SchedulerBackend) -> SchedulerBackend:
        return self.scheduler_backends()[0] if scheduler == _DEFAULT else scheduler

    def _refuse_other(self, app_handle: AppHandle) -> None:
        if parse_app_handle(app_handle).session_name != self._name:
            raise SessionMismatchException(app_handle, self._name)


def RoleReplicaStatus(  # noqa: N802 - a name of TSM
    replica_id: int,
    state: AppState,
    role: str,
    exit_code: int | None = None,
    end_time: int | None = None,
    error_msg: str | None = None,
) -> ReplicaStatus:
    """Return the status of a replica whose host is unknown."""
    return ReplicaStatus(
        id=replica_id,
        state=state,
        role=role,
        hostname="",
        exit_code=exit_code,
        end_time=end_time,
        error_msg=error_msg,
    )
