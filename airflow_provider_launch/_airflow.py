"""The versions of Airflow that this package supports."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

LOWEST = (3, 3)
"""The lowest version of Airflow that is supported."""


def require_airflow() -> None:
    """Refuse an old Airflow, before a name that it lacks is imported.

    Raises:
        ImportError: the text has the installed version, the required version, and the fix.
    """
    installed = _installed()
    if installed is None:
        return
    found = tuple(int(number) for number in re.findall(r"\d+", installed)[:2])
    if found < LOWEST:
        needed = ".".join(map(str, LOWEST))
        raise ImportError(
            f"airflow-provider-launch needs Airflow {needed} or newer, but Airflow {installed} is installed: upgrade"
            " Airflow first, or uninstall airflow-provider-launch"
        )


def _installed() -> str | None:
    """Return the version of Airflow; None if it is not installed, or only its task SDK is."""
    # The first name is for Airflow 3; the second is for Airflow 2, or only the meta package of Airflow 3.
    for name in ("apache-airflow-core", "apache-airflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
