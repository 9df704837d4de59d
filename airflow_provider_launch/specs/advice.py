"""Warnings about apps that are valid, but probably not as their author means them: pure."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from airflow_provider_launch.specs.macros import near_misses
from airflow_provider_launch.specs.roles import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_launch.specs.roles import AppDef, Role

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
_FOR_A_SHELL = re.compile(r"\$\{?(?:LAUNCH|TORCHX)_\w+\}?|\$\([A-Za-z_]\w*\)")
"""Variables of the launcher as a shell expands them, and any variable as Kubernetes does."""

_RANK_NAMES = ("RANK", "NODE_RANK", "PET_NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")
_RANKS = re.compile(rf"(?<![\w-])(?:(?:{'|'.join(_RANK_NAMES)})=|--node[_-]rank\b)")
"""Variables that a script sets for each process of a training, and the argument of torchrun for numbered nodes."""

_SBATCH = re.compile(r"^#SBATCH[ \t]+\S+", re.MULTILINE)


def warnings_of(app: AppDef) -> list[str]:
    """Return one sentence for each part of the app that will probably not do what its author expects."""
    return [f"role {role.name!r}: {text}" for role in app.roles for text in _warnings_of(role)]


def _warnings_of(role: Role) -> Iterator[str]:
    for given, meant in near_misses(role):
        yield f"${{{given}}} is not a macro and stays as it is, for the shell; did you mean ${{{meant}}}?"
    if found := next(filter(None, map(_SBATCH.search, role.args)), None):
        yield f"{found[0].strip()!r} in its script is not read; the options of sbatch belong into cfg"
    # Values of variables never pass a shell before the program sees them.
    texts = {f"env {name}": value for name, value in role.env.items()}
    # The ENTRYPOINT of an image may be a shell.
    if role.entrypoint is not None and posixpath.basename(role.entrypoint) not in _SHELLS:
        texts |= {f"args[{at}]": arg for at, arg in enumerate(role.args)}
    for where, text in texts.items():
        if found := _FOR_A_SHELL.search(text):
            yield (
                f"{where}: no shell expands {found[0]}, so the program gets this text; use a macro, such as "
                f"macros.rank0_host or macros.port(role, name), or let a shell run the program"
            )
    is_alone = role.num_replicas == 1 or not role.max_retries
    if not is_alone and RetryPolicy(role.retry_policy) is RetryPolicy.REPLICA and (reason := _fixes_ranks(role)):
        yield (
            f"retry_policy REPLICA restarts one process of a training, but the ranks of the others are fixed "
            f"({reason}): they fail as well, and each failure uses up a retry; use APPLICATION"
        )


def _fixes_ranks(role: Role) -> str:
    """Return what gives the replicas their ranks in a training with PyTorch; empty if nothing fixes ranks."""
    if role.torch_env:
        return "torch_env"
    if known := next((name for name in _RANK_NAMES if name in role.env), None):
        return f"env {known}"
    found_at = ((at, _RANKS.search(arg)) for at, arg in enumerate(role.args))
    return next((f"{found[0].strip()!r} in args[{at}]" for at, found in found_at if found), "")
