"""The file of `[launch] config_file`: defaults that connections override."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_launch._airflow import conf
from airflow_provider_launch.specs.errors import InvalidAppError

__all__ = ["component_defaults", "config_files", "file_errors"]


def config_files() -> list[str]:
    """Return a list with the configured file, or an empty list.

    Raises:
        InvalidAppError: the file does not exist on this host.
    """
    path = conf.get("launch", "config_file", fallback="")
    if not path:
        return []
    found = Path(path).expanduser()
    if not found.is_file():
        raise InvalidAppError(
            f"config_file in the section launch of airflow.cfg is {path!r}, which is not a file on this host; fix it"
        )
    return [str(found)]


def component_defaults(name: str) -> dict[str, str]:
    """Return the defaults for the parameters of a component, from `[component:<name>]` of the file.

    Raises:
        InvalidAppError: the file cannot be read.
    """
    if not (files := config_files()):
        return {}
    from airflow_provider_launch.runner.config import read_sections

    with file_errors():
        return read_sections(files, "component").get(name, {})


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Name the file in errors of reading it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise InvalidAppError(f"config_file in the section launch of airflow.cfg: {error}") from error
