"""What the server's dry run refuses, and which refusals pass by themselves: pure."""

from __future__ import annotations

import re
from decimal import Decimal

_QUOTA = re.compile(r"exceeded quota: \S+, requested: (?P<requested>\S+), used: \S+, limited: (?P<limited>\S+)")
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
    "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})")


def is_passing(text: str) -> bool:
    """Return whether a quota is only used up now: pods wait until others have gone, and then start."""
    found = _QUOTA.search(text)
    if found is None or "jobs" in found["requested"]:
        return False
    requested, limited = _quantities(found["requested"]), _quantities(found["limited"])
    return all(name in limited and wanted <= limited[name] for name, wanted in requested.items())


def asks_for_restricted(text: str) -> bool:
    """Whether the namespace refuses a pod for the Pod Security Standard `restricted` alone."""
    return 'violates PodSecurity "restricted:' in text


def quantity(text: str) -> Decimal:
    """Return the number that Kubernetes spells as `500m` or `1Gi`."""
    found = _QUANTITY.fullmatch(text)
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is no quantity of Kubernetes")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def _quantities(text: str) -> dict[str, Decimal]:
    pairs = (part.partition("=") for part in text.rstrip(";").split(","))
    return {name: quantity(value) for name, _, value in pairs}
