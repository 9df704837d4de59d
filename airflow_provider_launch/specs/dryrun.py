"""The native request that a dry run builds."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_launch.specs.roles import AppDef
    from airflow_provider_launch.specs.runopts import CfgVal

T = TypeVar("T")


class AppDryRunInfo(Generic[T]):
    """The request that `schedule` would send. You can print, replace or change it before you schedule it."""

    def __init__(self, request: T, fmt: Callable[[T], str]) -> None:
        self.request = request
        self._fmt = fmt
        # Schedulers set and read these three attributes; plug-ins depend on the names.
        self._app: AppDef | None = None
        self._cfg: Mapping[str, CfgVal] = {}
        self._scheduler: str | None = None
        self.warnings: list[str] = []
        """Sentences about parts of the app that are probably not as its author means them."""

    @property
    def app(self) -> AppDef | None:
        """Return the app of this request, once `submit_dryrun` has set it."""
        return self._app

    @property
    def cfg(self) -> Mapping[str, CfgVal]:
        """Return a read-only view of the options of this request."""
        return MappingProxyType(self._cfg)

    def __repr__(self) -> str:
        # Any request can be printed and logged, whatever characters it contains.
        shown = [*(f"warning: {text}" for text in self.warnings), self._fmt(self.request)]
        return "\n".join(shown).encode("utf-8", "backslashreplace").decode()

    __str__ = __repr__
