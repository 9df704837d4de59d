"""Find components by name: builtin, registered by plug-ins, or in a file or module of the user."""

from __future__ import annotations

import abc
import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

from airflow_provider_launch.specs.component_args import get_fn_docstring
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.file_linter import ComponentFunctionValidator, not_found, validate
from airflow_provider_launch.specs.roles import AppDef
from airflow_provider_launch.util import entrypoints
from airflow_provider_launch.util.modules import import_attr
from airflow_provider_launch.util.paths import expanded
from airflow_provider_launch.util.plugin_registry import PluginType, registry
from airflow_provider_launch.util.strings import closest

BUILTINS = "airflow_provider_launch.components"
GROUP = PluginType.COMPONENT.value
Validators = Sequence[ComponentFunctionValidator] | None

log = logging.getLogger(__name__)


class ComponentNotFoundException(InvalidAppError):
    """There is no component of this name."""


class ComponentValidationException(InvalidAppError):
    """The function is not a valid component; the text lists the reasons."""


@dataclass
class Component:
    """A function that returns an app, with the name under which it is found."""

    name: str
    description: str
    fn_name: str
    fn: Callable[..., AppDef]
    validation_errors: list[str] = field(default_factory=list)


class ComponentsFinder(abc.ABC):
    """A source of components."""

    @abc.abstractmethod
    def find(self, validators: Validators) -> list[Component]:
        """Return the components; invalid ones are included, with their errors."""


class ModuleComponentsFinder(ComponentsFinder):
    """The public functions of a module and of the modules below it, with the prefix `group` in their names."""

    def __init__(self, module: str | ModuleType, group: str | None = None) -> None:
        self._module = module
        self._group = group

    def find(self, validators: Validators) -> list[Component]:
        """Return the components of all modules; modules that cannot be imported are logged as warnings."""
        found = []
        base = self._base()
        for module in _modules_below(base):
            prefix = _join_name(self._group, module_relname(module, base))
            found += [_component(_join_name(prefix, fn.__name__), fn, validators) for fn in _functions_of(module)]
        return found

    def find_one(self, name: str, validators: Validators) -> Component | None:
        """Return the component of a name without the group, and import only the modules that lead to it."""
        base = self._base()
        path, _, fn_name = name.rpartition(".")
        full = _join_name(base.__name__, path)
        packages = [path.rsplit(".", depth)[0] for depth in range(path.count("."), -1, -1)] if path else []
        if not all(hasattr(base, "__path__") and _exists(_join_name(base.__name__, package)) for package in packages):
            return None
        module = importlib.import_module(full) if path else base
        fn = next((fn for fn in _functions_of(module) if fn.__name__ == fn_name), None)
        return None if fn is None else _component(_join_name(self._group, name), fn, validators)

    def _base(self) -> ModuleType:
        return importlib.import_module(self._module) if isinstance(self._module, str) else self._module


class CustomComponentsFinder(ComponentsFinder):
    """One function in a file."""

    def __init__(self, filepath: str, function_name: str) -> None:
        self._path = filepath
        self._name = function_name

    def find(self, validators: Validators) -> list[Component]:
        """Return the component; a file whose source is not valid is not run.

        Raises:
            ComponentNotFoundException: the file does not exist, or has no such function after it has run.
            ComponentValidationException: its source is not valid.
        """
        path = expanded(self._path)
        if not path.is_file():
            raise ComponentNotFoundException(f"component file {self._path!r} does not exist (from {os.getcwd()!r})")  # noqa: PTH109 - text
        name = f"{self._path}:{self._name}"
        errors = [message.description for message in validate(str(path), self._name, validators)]
        if errors == [not_found(self._name)]:
            raise ComponentNotFoundException(f"file {self._path!r} has no function {self._name!r}")
        if errors:
            raise _invalid(name, errors)
        function = getattr(_file_module(path.resolve()), self._name, None)
        if not inspect.isfunction(function):
            raise ComponentNotFoundException(f"file {self._path!r} has no function {self._name!r}")
        return [Component(name, get_fn_docstring(function)[0], self._name, function)]


def get_component(name: str, validators: Validators = None) -> Component:
    """Return the component of a name.

    `PATH:function` is a function of a file, `pkg.module:function` and `pkg.module.function` are functions of a module.
    Other names are registered functions, entry points of `airflow_provider_launch.components`, and builtins.

    Raises:
        ComponentNotFoundException: the component does not exist; the text proposes a similar one.
        ComponentValidationException: the function is not a valid component; the text lists the reasons.
    """
    component = _find(name, validators)
    if component is None:
        raise ComponentNotFoundException(_unknown(name))
    if component.validation_errors:
        raise _invalid(name, component.validation_errors)
    return component


def get_components(validators: Validators = None) -> dict[str, Component]:
    """Return all valid components by name: builtin ones, entry points, registered ones; later ones win."""
    return {name: found for name, found in _find_all(validators).items() if not found.validation_errors}


def get_builtin_source(name: str) -> str:
    """Return the source of a builtin component with its imports, as a complete file.

    Raises:
        ComponentNotFoundException: the builtin component does not exist.
    """
    component = ModuleComponentsFinder(BUILTINS).find_one(name, [])
    if component is None:
        raise ComponentNotFoundException(_unknown(name))
    module = inspect.getsource(inspect.getmodule(component.fn) or component.fn)
    lines, last = module.splitlines(), 0
    for number, line in enumerate(lines):
        if line.startswith(("import ", "from ")):
            last = next(at for at in range(number, len(lines)) if "(" not in line or ")" in lines[at])
        elif line.startswith(("def ", "class ", "__all__")):
            break
    first = next(number for number, line in enumerate(lines) if line.startswith(("import ", "from ")))
    return "\n".join([*lines[first : last + 1], "", "", inspect.getsource(component.fn)])


def module_relname(module: ModuleType, relative_to: ModuleType) -> str:
    """Return the name of a module relative to another one; empty for the same module.

    Raises:
        ValueError: the module is not below the other one.
    """
    base = relative_to.__name__
    if module.__name__ == base:
        return ""
    if not module.__name__.startswith(f"{base}."):
        raise ValueError(f"module {module.__name__!r} is not below {base!r}")
    return module.__name__[len(base) + 1 :]


# ---- by name -------------------------------------------------------------------------------------------------


def _find(name: str, validators: Validators) -> Component | None:
    path, colon, function = name.rpartition(":")
    if colon and (path.endswith(".py") or os.sep in path or "/" in path or Path(path).is_file()):
        return CustomComponentsFinder(path, function).find(validators)[0]
    if colon:
        return _find_in_module(name, path, function, validators)
    if (found := _find_registered(name, validators)) is not None:
        return found
    module, _, function = name.rpartition(".")
    return _find_in_module(name, module, function, validators) if module else None


def _find_in_module(name: str, module: str, function: str, validators: Validators) -> Component | None:
    try:
        found = import_attr(module, function, None)
    except AttributeError:
        # A module whose import failed is not there.
        if module in sys.modules:
            return None
        raise
    if found is None:
        return None
    if not inspect.isfunction(found):
        raise _invalid(name, [f"it is {type(found).__name__}, not a function; write a function that returns an AppDef"])
    return _component(name, found, validators)


def _find_registered(name: str, validators: Validators) -> Component | None:
    own = registry.get(PluginType.COMPONENT).get(name)
    if own is not None:
        return _component(name, own, validators)
    for entry in entrypoints.find(GROUP).values():
        prefix = "" if entry.name.startswith("_") else entry.name
        if prefix and name != prefix and not name.startswith(f"{prefix}."):
            continue
        loaded = entry.load() if prefix else _load_or_warn(entry)
        if not isinstance(loaded, ModuleType):
            if inspect.isfunction(loaded) and name == (prefix or loaded.__name__):
                return _component(name, loaded, validators)
        elif name != prefix:
            below = name[len(prefix) + 1 :] if prefix else name
            found = ModuleComponentsFinder(loaded, prefix).find_one(below, validators)
            if found is not None:
                return found
    return ModuleComponentsFinder(BUILTINS).find_one(name, validators)


def _find_all(validators: Validators) -> dict[str, Component]:
    found = ModuleComponentsFinder(BUILTINS).find(validators)
    for entry in entrypoints.find(GROUP).values():
        loaded = _load_or_warn(entry)
        prefix = "" if entry.name.startswith("_") else entry.name
        if isinstance(loaded, ModuleType):
            found += ModuleComponentsFinder(loaded, prefix).find(validators)
        elif inspect.isfunction(loaded):
            found.append(_component(prefix or loaded.__name__, loaded, validators))
    found += [_component(name, fn, validators) for name, fn in registry.get(PluginType.COMPONENT).items()]
    return {component.name: component for component in found}


def _load_or_warn(entry: EntryPoint) -> object:
    try:
        return entry.load()
    except Exception as error:  # noqa: BLE001 - whatever a module raises while it is imported
        log.warning("skipping the components of entry point %s: %s: %s", entry.name, type(error).__name__, error)
        return None


def _unknown(name: str) -> str:
    known = _find_all([])
    near = closest(name, known)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(known))}."
    return f"component {name!r} does not exist; {hint} Your own: 'path/file.py:function' or 'pkg.module:function'"


def _invalid(name: str, errors: Sequence[str]) -> ComponentValidationException:
    lines = "".join(f"\n  {error}" for error in errors)
    return ComponentValidationException(f"{name!r} is not a valid component:{lines}")


# ---- functions and modules -----------------------------------------------------------------------------------


def _component(name: str, fn: Callable[..., AppDef], validators: Validators) -> Component:
    fn_name = getattr(fn, "__name__", name)
    errors: list[str] = []
    source = _source_of(fn)
    if source:
        errors = [message.description for message in validate(source, inspect.unwrap(fn).__name__, validators)]
    return Component(name, get_fn_docstring(fn)[0], fn_name, fn, errors)


def _source_of(fn: Callable[..., AppDef]) -> str | None:
    """Return the file of a function; None if it was created at run time and has no source file."""
    plain = inspect.unwrap(fn)
    if not inspect.isfunction(plain) or plain.__qualname__ != plain.__name__:
        return None
    path = inspect.getsourcefile(plain)
    return path if path and Path(path).is_file() else None


def _functions_of(module: ModuleType) -> list[Callable[..., AppDef]]:
    """Return the public functions that the module defines itself, in their order."""
    return [
        fn
        for name, fn in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(fn) and fn.__module__ == module.__name__
    ]


def _modules_below(base: ModuleType) -> Iterator[ModuleType]:
    yield base
    # Not `walk_packages`: it also finds modules of namespace packages, and fails at the first broken one.
    for info in pkgutil.iter_modules(getattr(base, "__path__", []), f"{base.__name__}."):
        if any(part.startswith("_") for part in info.name[len(base.__name__) + 1 :].split(".")):
            continue
        try:
            module = importlib.import_module(info.name)
        except Exception as error:  # noqa: BLE001 - whatever a module raises while it is imported
            log.warning("skipping the components of %s: %s: %s", info.name, type(error).__name__, error)
            continue
        if info.ispkg:
            yield from _modules_below(module)
        else:
            yield module


def _exists(module: str) -> bool:
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError as error:
        # The parent is missing, or not a package. If another module is missing, an import inside a parent failed.
        if error.name is None or not module.startswith(error.name):
            raise
        return False
    # A namespace package has no origin.
    return found is not None and found.origin is not None


def _join_name(*parts: str | None) -> str:
    return ".".join(part for part in parts if part)


_lock = threading.Lock()
_files: dict[Path, tuple[tuple[int, int], ModuleType]] = {}


def _file_module(path: Path) -> ModuleType:
    """Return a file as a module; it runs again only after a change."""
    stat = path.stat()
    stamp = (stat.st_mtime_ns, stat.st_size)
    with _lock:
        if path in _files and _files[path][0] == stamp:
            return _files[path][1]
        digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        name = f"airflow_provider_launch_component_{digest}_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(name)
        # Dataclasses and pickle find the module by name.
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            if before is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = before
            raise
        finally:
            sys.path.remove(str(path.parent))
        _files[path] = (stamp, module)
        return module
