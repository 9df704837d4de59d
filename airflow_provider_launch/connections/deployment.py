"""Settings of the whole deployment that change what a connection means."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs.errors import InvalidAppError

if TYPE_CHECKING:
    from airflow_provider_launch.specs.runopts import runopts


@dataclass(frozen=True)
class Deployment:
    """Values of the section `[launch]` of Airflow's configuration, wherever they were read from."""

    config_file: str = ""
    """Path of the file of defaults, which connections override. Empty: there is none."""
    allow_kubeconfig_exec: bool = False
    """Whether a kubeconfig in a connection may start programs."""

    def options(self, backend: str, schema: runopts) -> dict[str, Any]:
        """Return the options of a scheduler from the file of defaults."""
        if not (files := self._files()):
            return {}
        from airflow_provider_launch.runner.config import read_options

        with _file_errors():
            return dict(read_options(files[0], backend, schema))

    def component_defaults(self, name: str) -> dict[str, str]:
        """Return the defaults for the parameters of a component, from `[component:<name>]` of the file."""
        if not (files := self._files()):
            return {}
        from airflow_provider_launch.runner.config import read_sections

        with _file_errors():
            return read_sections(files, "component").get(name, {})

    def trackers(self) -> dict[str, str | None]:
        """Return name to config of the trackers of all replicas."""
        from airflow_provider_launch.runner.injected_env import get_configured_trackers

        files = self._files()
        with _file_errors():
            return get_configured_trackers(files)

    def _files(self) -> list[str]:
        if not self.config_file:
            return []
        found = Path(self.config_file).expanduser()
        if not found.is_file():
            raise InvalidAppError(
                f"config_file in the section launch of airflow.cfg is {self.config_file!r}, which is not a file on "
                f"this host; fix it"
            )
        return [str(found)]


@contextlib.contextmanager
def _file_errors() -> Iterator[None]:
    """Name the file in errors of reading it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise InvalidAppError(f"config_file in the section launch of airflow.cfg: {error}") from error
