"""Names that are made of the names of apps and roles: pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from airflow_provider_launch.specs.errors import InvalidAppError


def file_slug(name: str) -> str:
    """Return what is left of `name` in a file name or the name of a container; may be empty."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")


def dns_slug(name: str) -> str:
    """Return what is left of `name` in a part of a host name: lower-case letters, digits and `-`; may be empty."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def unique_slugs(
    names: Sequence[str],
    slug: Callable[[int, str], str],
    *,
    clash: str,
    compared: Callable[[str], str] = str,
) -> list[str]:
    """Return how each role appears in the names of native objects.

    Args:
        names: of the roles.
        slug: number and name of a role to its slug.
        clash: what two roles with one slug have in common: `name their Job {} on 'kubernetes'`.
        compared: slug to what must be unique, where the engine ignores differences.

    Raises:
        InvalidAppError: two roles would have the same objects.
    """
    found: dict[str, str] = {}
    slugs = []
    for number, name in enumerate(names):
        text = slug(number, name)
        key = compared(text)
        if key in found:
            raise InvalidAppError(f"roles {found[key]!r} and {name!r} would both {clash.format(repr(key))}; rename one")
        found[key] = name
        slugs.append(text)
    return slugs
