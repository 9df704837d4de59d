"""Patches of the native request, for fields that the data model does not have.

```python
set_overlay(role, "kubernetes", "V1Pod", {"spec": {"hostNetwork": True, PUT("tolerations"): []}})
```

An overlay is stored in `target.metadata[namespace][kind]`. Dicts are merged, lists are appended, other values are
replaced; `PUT` replaces whole values, `DEL` removes, and `JOIN` patches the items of a list matched by one field.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_launch.specs.secrets import masked_error
from airflow_provider_launch.util.openapi_models import plain

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef, Role

log = logging.getLogger(__name__)

MARKER = "__torchx_overlays__"
"""Key that marks the other keys of a namespace as kinds of overlays; stored data, so do not change its spelling."""
_GUARD: ContextVar[Callable[[str], None] | None] = ContextVar("launch_overlay_guard", default=None)
LARGEST_FILE = 1024 * 1024
DEEPEST, MOST_VALUES = 100, 100_000
"""Limits of an overlay file: nesting, and number of values; an alias counts with all its values each time."""
_LONGEST_NUMBER = 100
_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"
_PUT, _DEL, _JOIN = "__put__", "__del__", "__join__"


def PUT(key: str) -> str:  # noqa: N802 - a name of the launcher model
    """Return the key that replaces the whole value of `key` instead of merging."""
    return f"{_PUT}:{key}"


def DEL(key: str) -> str:  # noqa: N802 - the same
    """Return the key that removes `key`; its value is ignored."""
    return f"{_DEL}:{key}"


def JOIN(key: str, *, on: str) -> str:  # noqa: N802 - the same
    """Return the key that patches the items of list `key` that have the same field `on`, and appends the others."""
    return f"{_JOIN}:{key}:{on}"


@dataclass(frozen=True)
class _Operation:
    kind: str
    """One of the operators, or empty."""
    field: str
    on: str = ""

    @staticmethod
    def of(key: object) -> _Operation:
        text = str(key)
        kind, colon, rest = text.partition(":")
        if not colon or kind not in {_PUT, _DEL, _JOIN}:
            return _Operation("", text)
        if kind != _JOIN:
            return _Operation(kind, rest)
        field, _, on = rest.rpartition(":")
        if not field or not on:
            raise ValueError(f"overlay key {text!r} has no field to join on; write JOIN(key, on=field)")
        return _Operation(kind, field, on)


# ---- apply -----------------------------------------------------------------------------------------------------------


def apply_overlay(base: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Patch `base` in place; `overlay` is not changed, and shares nothing with the result.

    Raises:
        TypeError: the overlay and the base have different kinds of value: dict, list or plain value.
        ValueError: a `JOIN` has no field, or an item of its list lacks the field.
    """
    for key, value in overlay.items():
        operation = _Operation.of(key)
        field = operation.field
        # If the base is an overlay too, the later of two operations on one field wins.
        for other in [other for other in base if _is_operator(other) and _Operation.of(other).field == field]:
            del base[other]
        if operation.kind == _PUT:
            base[field] = _copy_value(value)
        elif operation.kind == _DEL:
            base.pop(field, None)
        elif operation.kind == _JOIN:
            base[field] = _join(base.get(field), value, operation)
        else:
            base[field] = _merge(base, field, value)


def _is_operator(key: object) -> bool:
    return isinstance(key, str) and key.startswith((f"{_PUT}:", f"{_DEL}:", f"{_JOIN}:"))


def _merge(base: Mapping[str, Any], field: str, value: Any) -> Any:
    known = base.get(field)
    if value is None or known is None or (isinstance(value, tuple) and isinstance(known, list)):
        return _copy_value(value)
    if isinstance(known, dict) and isinstance(value, Mapping):
        apply_overlay(known, value)
        return known
    if isinstance(known, list) and isinstance(value, list):
        return [*known, *map(_copy_value, value)]
    if isinstance(known, (dict, list)) or isinstance(value, (Mapping, list, tuple)):
        raise TypeError(
            f"overlay field {field!r} is {type(value).__name__}, but the request has {type(known).__name__} there; "
            f"give the same kind, or replace it with PUT({field!r})"
        )
    return value


def _join(known: Any, value: Any, operation: _Operation) -> list[Any]:
    field, on = operation.field, operation.on
    for name, items in (("request", [] if known is None else known), ("overlay", value)):
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, Mapping) for item in items):
            raise TypeError(f"JOIN of {field!r} needs a list of dicts, but the {name} has another value there")
    result = list(known or [])
    for item in value:
        if on not in item:
            raise ValueError(f"JOIN of {field!r}: an item has no field {on!r} to join on; add it")
        same = [there for there in result if there.get(on) == item[on]]
        for there in same:
            there.update({name: _copy_value(part) for name, part in item.items() if name != on})
        if not same:
            result.append(_copy_value(item))
    return result


def _copy_value(value: Any) -> Any:
    """Return a deep copy of a new value: tuples become lists, and operators inside apply to an empty base."""
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        apply_overlay(made, value)
        return made
    if isinstance(value, (list, tuple)):
        return [_copy_value(item) for item in value]
    return copy.deepcopy(value)


# ---- store -----------------------------------------------------------------------------------------------------------


def set_overlay(target: Role | AppDef, namespace: str, kind: str, overlay: Mapping[str, Any]) -> None:
    """Add an overlay to `target.metadata[namespace][kind]`; the later of two operations on one field wins.

    Raises:
        ValueError: the kind is the reserved key.
    """
    if kind == MARKER:
        raise ValueError(f"overlay kind {kind!r} is reserved; use another kind")
    stored = target.metadata.get(namespace)
    if stored is not None and not isinstance(stored, dict):
        warnings.warn(
            f"metadata[{namespace!r}] was {type(stored).__name__}, not an overlay; it is replaced", stacklevel=2
        )
    if not isinstance(stored, dict):
        stored = target.metadata[namespace] = {}
    stored[MARKER] = True
    known = stored.get(kind)
    stored[kind] = _combined(known if isinstance(known, Mapping) else {}, plain(overlay))


def _combined(known: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(known)
    for key, value in added.items():
        field = _Operation.of(key).field
        before = result.get(key)
        for other in [other for other in result if other != key and _Operation.of(other).field == field]:
            del result[other]
        is_put = _Operation.of(key).kind == _PUT
        if isinstance(before, Mapping) and isinstance(value, Mapping) and not is_put:
            result[key] = _combined(before, value)
        elif isinstance(before, list) and isinstance(value, list) and not is_put:
            result[key] = [*before, *copy.deepcopy(value)]
        else:
            result[key] = copy.deepcopy(value)
    return result


def get_overlay(target: Role | AppDef, namespace: str, kind: str, *, flat_fallback: bool = True) -> dict[str, Any]:
    """Return the overlay of a kind; empty if there is none.

    Text instead of an overlay is the path or URI of a JSON or YAML file with the overlay. A namespace without kinds,
    written by hand, is used as a whole, with a warning.

    Args:
        target: a role or an app.
        namespace: usually the name of a scheduler.
        kind: the kind of the native object.
        flat_fallback: whether a namespace without kinds is itself an overlay.

    Raises:
        ValueError: a file cannot be read, or does not contain a dict.
    """
    stored = plain(target.metadata.get(namespace))
    if isinstance(stored, str):
        stored = _load(stored)
    if not isinstance(stored, Mapping):
        return {}
    if kind in stored:
        found = stored[kind]
        found = _load(found) if isinstance(found, str) else found
        return dict(copy.deepcopy(found)) if isinstance(found, Mapping) else {}
    others = [name for name in stored if name != MARKER]
    if stored.get(MARKER):
        log.debug("%s has no overlay %s; it has %s", namespace, kind, ", ".join(others) or "none")
        return {}
    has_kinds = len(others) > 1 and all(isinstance(value, Mapping) for value in stored.values())
    if not others or has_kinds or not flat_fallback:
        return {}
    warnings.warn(
        f"metadata[{namespace!r}] is a flat overlay without kinds and is used as {kind!r}; use set_overlay",
        stacklevel=2,
    )
    return dict(copy.deepcopy(stored))


@contextlib.contextmanager
def guarded(check: Callable[[str], None]) -> Iterator[None]:
    """Call `check` with each path and URI of an overlay before it is opened; `check` raises to refuse it."""
    token = _GUARD.set(check)
    try:
        yield
    finally:
        _GUARD.reset(token)


def read_file(location: str) -> dict[str, Any]:
    """Return the object in a JSON or YAML file, given by path or URI; a ValueError if it cannot be read."""
    return _load(location)


def _load(location: str) -> dict[str, Any]:
    if (check := _GUARD.get()) is not None:
        check(location)
    try:
        document = _parse(_read(location))
    except (OSError, ImportError, ValueError) as error:
        raise ValueError(masked_error(f"overlay file {location!r} cannot be read: {error}")) from error
    if not isinstance(document, dict):
        text = masked_error(f"overlay file {location!r} is not a mapping; write fields and their values")
        raise ValueError(text)  # noqa: TRY004 - the file is wrong
    return document


def _read(location: str) -> str:
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        path = Path(unquote(parts.path) if parts.scheme else location)
        # Opening a FIFO would block.
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    else:
        import fsspec

        with fsspec.open(location, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError("it has more than 1 MB; no engine accepts a request that large")
    return data.decode("utf-8")


def _parse(text: str) -> Any:
    import yaml

    kind: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(kind):  # type: ignore[misc] # one of two
        """Loader that also supports the one tag of overlays: a tuple replaces a list."""

    def make_tuple(loader: yaml.SafeLoader, node: yaml.Node) -> tuple[Any, ...]:
        assert isinstance(node, yaml.SequenceNode)
        return tuple(loader.construct_sequence(node, deep=True))

    Loader.add_constructor("tag:yaml.org,2002:python/tuple", make_tuple)
    loader = None
    try:
        # JSON is YAML, too. Check the depth first, because composing is recursive.
        _refuse_depth(yaml.parse(text, Loader=Loader))
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _count_values(node, 0, {})
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_depth(events: Iterable[Any]) -> None:
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise ValueError(_TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _count_values(node: Any, level: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many values and levels a node has, counting aliases each time; refuse a node with too many."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"it has a number of more than {_LONGEST_NUMBER} characters")
        return 1, 0
    if level > DEEPEST:
        raise ValueError(_TOO_DEEP)
    if id(node) not in known:
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        weights = [_count_values(part, level + 1, known) for part in parts]
        known[id(node)] = 1 + sum(one[0] for one in weights), 1 + max((one[1] for one in weights), default=0)
    values, levels = known[id(node)]
    if level + levels > DEEPEST + 1:
        raise ValueError(_TOO_DEEP)
    if values > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values; each alias counts with all values that it repeats")
    return values, levels


# ---- check -----------------------------------------------------------------------------------------------------------


def validate_overlay(
    overlay: Mapping[str, Any],
    *,
    blocklist: Iterable[str] | None = None,
    forbidden_keys: Iterable[str] | None = None,
    overlay_name: str = "overlay",
    suggestion: str = "",
) -> None:
    """Refuse blocked and forbidden top-level fields, with or without an operator.

    Args:
        overlay: the overlay to check.
        blocklist: fields that the launcher sets itself.
        forbidden_keys: fields that belong elsewhere.
        overlay_name: name for the error message, usually the kind.
        suggestion: the place where the forbidden fields belong.

    Raises:
        ValueError: a field is blocked or forbidden; the text names it.
    """
    fields = [_Operation.of(key).field for key in overlay]
    blocked, forbidden = set(blocklist or ()), set(forbidden_keys or ())
    for field in fields:
        if field in blocked:
            raise ValueError(f"overlay field {overlay_name}.{field} is set by the launcher itself; remove it")
        if field in forbidden:
            raise ValueError(f"{overlay_name} does not take field {field!r}; {suggestion or 'remove it'}")


@dataclass(frozen=True)
class OverlaySpec:
    """One kind of overlay of a scheduler, with the fields that it must not set."""

    namespace: str
    kind: str
    blocklist: tuple[str, ...] = ()

    def set(self, target: Role | AppDef, overlay: Mapping[str, Any]) -> None:
        """Check the overlay, and add it to the target.

        Raises:
            ValueError: a field is blocked.
        """
        validate_overlay(overlay, blocklist=self.blocklist, overlay_name=self.kind)
        set_overlay(target, self.namespace, self.kind, overlay)

    def get(self, target: Role | AppDef) -> dict[str, Any]:
        """Return the checked overlay of the target; empty if there is none.

        Raises:
            ValueError: a field is blocked.
        """
        overlay = get_overlay(target, self.namespace, self.kind, flat_fallback=False)
        validate_overlay(overlay, blocklist=self.blocklist, overlay_name=self.kind)
        return overlay
