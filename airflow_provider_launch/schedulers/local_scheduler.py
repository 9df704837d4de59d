"""The scheduler `local_cwd` of TorchX, in the module that TorchX has for it: local processes in the current directory.

The image is ignored. It stores its apps like `local`; only the supported features differ.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_provider_launch.schedulers.local.options import LocalCwdOpts, LocalOpts
from airflow_provider_launch.schedulers.local.request import LocalRequest
from airflow_provider_launch.schedulers.local.scheduler import LocalScheduler
from airflow_provider_launch.schedulers.structured_opts import resolve_options
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.roles import AppDef, Role

__all__ = ["LocalCwdOpts", "LocalCwdScheduler", "LocalOpts", "LocalScheduler", "create_scheduler"]


class LocalCwdScheduler(LocalScheduler):
    """Runs each replica in the current directory; image, mounts and devices are ignored, with a note in the request."""

    name: ClassVar[str] = "local_cwd"
    opts_type = LocalCwdOpts

    def _submit_dryrun(
        self, app: AppDef, cfg: Mapping[str, Any], *, app_id: str | None = None
    ) -> AppDryRunInfo[LocalRequest]:
        opts = resolve_options(LocalCwdOpts, cfg, strict=False)
        roles, notes = [], []
        for role in app.roles:
            plain, ignored = _plain(role, keeps_gpu=opts.auto_set_cuda_visible_devices)
            roles.append(plain)
            if ignored:
                notes.append(f"role {role.name}: {', '.join(ignored)} ignored by local_cwd")
        info = super()._submit_dryrun(dataclasses.replace(app, roles=roles), opts, app_id=app_id)
        info.request.notes = notes
        if opts.log_dir:
            info.request.log_dir = os.path.join(os.path.abspath(os.path.expanduser(opts.log_dir)), info.request.app_id)
        return info


def _plain(role: Role, *, keeps_gpu: bool) -> tuple[Role, list[str]]:
    """Return the role without features that `local_cwd` ignores, and their names."""
    resource = dataclasses.replace(role.resource, devices={}, gpu=role.resource.gpu if keeps_gpu else 0)
    ignored = [
        *([f"image {role.image!r}"] if role.image else []),
        *(["mounts"] if role.mounts else []),
        *(["resource.devices"] if role.resource.devices else []),
        *([f"resource.gpu={role.resource.gpu}"] if role.resource.gpu > 0 and not keeps_gpu else []),
    ]
    # Not `replace`: a subclass of Role may have its own constructor.
    plain = Role(**{field.name: getattr(role, field.name) for field in dataclasses.fields(Role)})
    plain.image, plain.mounts, plain.resource = "", [], resource
    return plain, ignored


create_scheduler = LocalCwdScheduler.create
