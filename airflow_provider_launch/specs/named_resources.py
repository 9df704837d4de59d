"""Resources by name: `named_resources["gpu.small"]`, looked up only when needed.

Later sources win: the generic set, the AWS set, the custom module of `LAUNCH_CUSTOM_NAMED_RESOURCES`, plug-ins.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from airflow_provider_launch import settings
from airflow_provider_launch.specs.resources import NULL_RESOURCE, Resource
from airflow_provider_launch.util import entrypoints
from airflow_provider_launch.util.plugin_registry import PluginType, registry
from airflow_provider_launch.util.strings import closest

ResourceFactory = Callable[[], Resource]

GROUP = "airflow_provider_launch.named_resources"
_BUILTIN = (
    "airflow_provider_launch.specs.named_resources_generic",
    "airflow_provider_launch.specs.named_resources_aws",
)

# No source can override these names.
_NOTHING: Mapping[str, ResourceFactory] = {"NULL": lambda: NULL_RESOURCE, "MISSING": lambda: NULL_RESOURCE}

log = logging.getLogger(__name__)


class _ReentrantLookupError(RuntimeError):
    """A module looked up a named resource while it was imported to define named resources."""


class NamedResources(Mapping[str, Resource]):
    """A read-only mapping from name to a new resource; sources are scanned once, at the first access."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_scanning = False
        self._factories: dict[str, ResourceFactory] | None = None
        self._load_errors: dict[str, Exception] = {}

    @property
    def load_errors(self) -> Mapping[str, Exception]:
        """Sources that could not be loaded during the last scan, with their errors."""
        return dict(self._load_errors)

    def reset(self) -> None:
        """Discard the scan; the next access scans again."""
        with self._lock:
            self._factories = None
            self._load_errors = {}

    def __getitem__(self, name: str) -> Resource:
        """Return the resource of this name; the error for an unknown name proposes the closest one, or lists all."""
        factories = self._scanned()
        if name not in factories:
            raise KeyError(self._unknown(name, factories))
        return factories[name]()

    def __contains__(self, name: object) -> bool:
        """Whether the name exists; no resource is created."""
        return name in self._scanned()

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(list(self._scanned()))

    def __len__(self) -> int:
        """Count the names."""
        return len(self._scanned())

    def __repr__(self) -> str:
        """Show the names, without scanning for them."""
        return f"NamedResources({'not loaded' if self._factories is None else sorted(self._factories)})"

    def _unknown(self, name: str, factories: Mapping[str, ResourceFactory]) -> str:
        near = closest(str(name), factories)
        hint = f"Did you mean `{near}`?" if near else f"Registered named resources: {', '.join(sorted(factories))}"
        failed = "".join(f"; {source} was not loaded ({error})" for source, error in self._load_errors.items())
        return f"No named resource found for `{name}`. {hint}{failed}"

    def _scanned(self) -> Mapping[str, ResourceFactory]:
        # The lock is re-entrant: other threads wait for the scan; only the scanning thread itself can get here.
        with self._lock:
            if self._is_scanning:
                raise _ReentrantLookupError(
                    "re-entrant named-resource lookup: a module that defines named resources asks for one "
                    "while it is imported; move the lookup into the factory function"
                )
            if self._factories is None:
                self._is_scanning = True
                try:
                    self._load_errors = {}
                    self._factories = self._scan()
                finally:
                    self._is_scanning = False
            # Resources registered by a decorator after the scan are included.
            return {**self._factories, **registry.get(PluginType.NAMED_RESOURCE), **_NOTHING}

    def _scan(self) -> dict[str, ResourceFactory]:
        factories: dict[str, ResourceFactory] = {}
        for module in _BUILTIN:
            factories.update(importlib.import_module(module).NAMED_RESOURCES)
        factories.update(self._custom())
        factories.update(self._plugins())
        return factories

    def _custom(self) -> Mapping[str, ResourceFactory]:
        variables = (settings.ENV_LAUNCH_CUSTOM_NAMED_RESOURCES, settings.ENV_TORCHX_CUSTOM_NAMED_RESOURCES)
        path = settings.getenv(*variables)
        if path is None:
            return {}
        name, _, attr = path.partition(":")
        try:
            found: Mapping[str, ResourceFactory] = getattr(importlib.import_module(name), attr or "NAMED_RESOURCES")
        except _ReentrantLookupError as error:
            self._failed(path, error)
            return {}
        except (ImportError, AttributeError) as error:
            variable = next(variable for variable in variables if os.environ.get(variable))
            raise ImportError(f"named resources of {path!r} (from {variable}) cannot be loaded: {error}") from error
        return found

    def _plugins(self) -> Mapping[str, ResourceFactory]:
        factories: dict[str, ResourceFactory] = {}
        for name, entry_point in entrypoints.find(GROUP).items():
            try:
                loaded = entry_point.load()
            except Exception as error:  # noqa: BLE001 - a broken plug-in must not disable the others
                self._failed(name, error)
                continue
            if isinstance(loaded, ModuleType):
                factories.update(getattr(loaded, "NAMED_RESOURCES", {}))
            elif isinstance(loaded, Mapping):
                factories.update(loaded)
            else:
                factories[name] = loaded
        return factories

    def _failed(self, source: str, error: Exception) -> None:
        log.warning("named resources of %s were not loaded: %s", source, error)
        self._load_errors[source] = error


named_resources = NamedResources()


def resource(
    cpu: float | str | None = None,
    gpu: int | None = None,
    memMB: int | None = None,  # noqa: N803 - a name of the launcher model
    h: str | None = None,
) -> Resource:
    """Return the resource named `h`, else one of these numbers; missing or zero means 2 CPUs, no GPU, 1024 MB.

    `cpu` may be a fraction, or text in the notation of Kubernetes, `"500m"`.
    """
    if h:
        return named_resources[h]
    # `Resource` converts text.
    cpus: Any = cpu or 2
    return Resource(cpu=cpus, gpu=gpu or 0, memMB=memMB or 1024)


def get_named_resources(res: str) -> Resource:
    """Return the resource of this name; deprecated, use `named_resources[res]`."""
    warnings.warn("get_named_resources is deprecated; use named_resources[name]", FutureWarning, stacklevel=2)
    return named_resources[res]
