"""Ignored requests and unchecked options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_launch.schedulers.api import Capability
from airflow_provider_launch.specs.errors import AppConflictError, InvalidAppError, UnsupportedError
from airflow_provider_launch.specs.roles import AppDef, BindMount, RetryPolicy, Role
from airflow_provider_launch.specs.runopts import runopts
from tests.contract.broken.defects import Threads, caught_by


@caught_by(
    "test_mount_is_accepted_or_refused[bind]",
    "test_mount_is_accepted_or_refused[volume]",
    "test_mount_is_accepted_or_refused[device]",
    "test_gpu_that_cannot_be_had_is_refused",
    "test_device_that_nobody_knows_is_refused",
    "test_replicas_agree_on_ports",
    "test_policy_that_is_not_offered_is_refused[REPLICA]",
    "test_policy_that_is_not_offered_is_refused[APPLICATION]",
    "test_policy_that_is_not_offered_is_refused[ROLE]",
    "test_program_of_the_image_is_accepted_or_refused",
)
class DropsWishes(Threads):
    def _refuse_unsupported(self, app: AppDef) -> None:
        pass


@caught_by("test_mount_is_accepted_or_refused[bind]", "test_gpu_that_cannot_be_had_is_refused")
class RefusesWithoutAReason(Threads):
    def _refuse_unsupported(self, app: AppDef) -> None:
        try:
            super()._refuse_unsupported(app)
        except UnsupportedError:
            raise UnsupportedError("not supported") from None


@caught_by(
    "test_mount_is_accepted_or_refused[bind]",
    "test_gpu_that_cannot_be_had_is_refused",
    "test_device_that_nobody_knows_is_refused",
    "test_replicas_agree_on_ports",
    "test_policy_that_is_not_offered_is_refused[REPLICA]",
)
class RefusesWithoutACure(Threads):
    def _refuse_unsupported(self, app: AppDef) -> None:
        try:
            super()._refuse_unsupported(app)
        except UnsupportedError as error:
            raise UnsupportedError(str(error).partition(";")[0]) from None


@caught_by("test_replicas_agree_on_ports", "test_policy_that_is_not_offered_is_refused[REPLICA]")
class RefusesWithoutTheField(Threads):
    def _refuse_unsupported(self, app: AppDef) -> None:
        try:
            super()._refuse_unsupported(app)
        except UnsupportedError:
            raise UnsupportedError(f"role {app.roles[0].name!r} is not supported by 'threads'; leave it out") from None


@caught_by("test_any_policy_is_accepted_without_retries")
class RefusesPoliciesOfNoRetries(Threads):
    def _refuse_unsupported(self, app: AppDef) -> None:
        super()._refuse_unsupported(app)
        for role in app.roles:
            if role.retry_policy is not RetryPolicy.APPLICATION:
                raise UnsupportedError(f"role {role.name!r}: retry_policy is not offered by 'threads'; leave it out")


@caught_by("test_bound_directory_is_there_and_read_only", "test_device_of_the_host_is_passed")
class PromisesMounts(DropsWishes):
    capabilities = promised = frozenset({*Threads.capabilities, Capability.BIND_MOUNT, Capability.DEVICE_MOUNT})


@caught_by("test_bound_directory_is_there_and_read_only")
class BindsForWriting(PromisesMounts):
    """A bind mount that has lost its `read_only`."""

    def _replica(self, role: Role, k: int, app_id: str) -> dict[str, Any]:
        replica = super()._replica(role, k, app_id)
        paths = {mount.dst_path: mount.src_path for mount in role.mounts if isinstance(mount, BindMount)}
        for inside, outside in paths.items():
            replica["argv"] = [arg.replace(inside, outside.rstrip("/")) for arg in replica["argv"]]
        return replica


@caught_by("test_workspace_is_refused_where_it_cannot_be_mirrored")
class DropsWorkspaces(Threads):
    def submit(self, app: AppDef, cfg: Any, workspace: Any = None) -> str:
        return super().submit(app, cfg)


class _TakesUnknown(runopts):
    def resolve(self, cfg: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
        return super().resolve(cfg)


@caught_by("test_unknown_option_is_refused")
class TakesUnknownOptions(Threads):
    opts: type[runopts] = _TakesUnknown

    def _run_opts(self) -> runopts:
        opts = self.opts()
        opts.add("grace_s", type_=float, default=2.0, help="seconds")
        return opts


@caught_by("test_unknown_param_is_refused")
class TakesUnknownParams(Threads):
    def __init__(self, session_name: str, *, root: str, **_: Any) -> None:
        super().__init__(session_name, root)


class _TakesAnything(runopts):
    def resolve(self, cfg: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
        return {**super().resolve({}), **self.registered(cfg, strict=strict)}


@caught_by("test_wrong_value_of_an_option_is_refused")
class TakesAnyValue(TakesUnknownOptions):
    opts = _TakesAnything

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        known = cfg if isinstance(cfg["grace_s"], float) else {"grace_s": 1.0}
        return super()._submit_dryrun(app, known, app_id=app_id)


@caught_by("test_every_declared_default_is_accepted")
class RefusesItsOwnDefault(Threads):
    def submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        if cfg.get("grace_s") == self.run_opts().get("grace_s").default:  # type: ignore[union-attr]
            raise InvalidAppError("grace_s must be given as an int")
        return super().submit_dryrun(app, cfg, app_id=app_id)


# ---- options with names of ours: no defects --------------------------------------------------------------------


class NamesItsGraceInItsOwnWay(Threads):
    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("patience", type_=float, default=2.0, help="seconds between TERM and KILL")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        return super()._submit_dryrun(app, {"grace_s": cfg["patience"]}, app_id=app_id)


class TakesItsGraceInSteps(Threads):
    """Its option has our name, and another meaning."""

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("grace_s", type_=list[str], default=["TERM", "2"], help="signals, with seconds between them")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Any, *, app_id: str | None = None) -> Any:
        return super()._submit_dryrun(app, {"grace_s": float(cfg["grace_s"][-1])}, app_id=app_id)


class RefusesLongerIds(Threads):
    """Refuses the id of an app that begins with that of another."""

    def schedule(self, dryrun_info: Any) -> str:
        app_id = str(dryrun_info.request["app_id"])
        if any(app_id.startswith(f"{row.app_id}-") for row in self.list()):
            raise AppConflictError(f"{app_id!r} begins with the id of another app; choose another id")
        return super().schedule(dryrun_info)
