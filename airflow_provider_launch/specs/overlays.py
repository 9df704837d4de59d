"""Patches of the native request, for fields that the model does not have.

```python
set_overlay(role, "kubernetes", "V1Pod", {"spec": {"hostNetwork": True, PUT("tolerations"): []}})
```

An overlay is stored in `target.metadata[namespace][kind]`. Dicts merge, lists are appended to, other values replace;
`PUT` replaces whole values, `DEL` removes, and `JOIN` patches the items of a list by one of their fields.
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

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import AppDef, Role

log = logging.getLogger(__name__)

MARKER = "__torchx_overlays__"
"""Key by which a namespace marks that its other keys are kinds of overlays; stored data, so its spelling is fixed."""
_GUARD: ContextVar[Callable[[str], None] | None] = ContextVar("launch_overlay_guard", default=None)
LARGEST_FILE = 1024 * 1024
DEEPEST, MOST_VALUES = 100, 100_000
"""Of a file: levels of dicts and lists, and values, of which those of an alias count each time."""
_LONGEST_NUMBER = 100
_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"
_PUT, _DEL, _JOIN = "__put__", "__del__", "__join__"


def PUT(key: str) -> str:  # noqa: N802 - a name of the launcher model
    """Return the key that replaces the whole value of `key`."""
    return f"{_PUT}:{key}"


def DEL(key: str) -> str:  # noqa: N802 - the same
    """Return the key that removes `key`; its value does not count."""
    return f"{_DEL}:{key}"


def JOIN(key: str, *, on: str) -> str:  # noqa: N802 - the same
    """Return the key that patches the items of the list `key` whose field `on` is equal, and appends the others."""
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
            raise ValueError(f"overlay key {text!r} names no field that joins; write JOIN(key, on=field)")
        return _Operation(kind, field, on)


# ---- apply -----------------------------------------------------------------------------------------------------------


def apply_overlay(base: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Patch `base` in place; `overlay` stays as it is, and shares nothing with the result.

    Raises:
        TypeError: a dict, a list or a plain value would meet one of another kind.
        ValueError: a `JOIN` names no field, or an item of its list has none.
    """
    for key, value in overlay.items():
        operation = _Operation.of(key)
        field = operation.field
        if operation.kind == _PUT:
            base[field] = _fresh(value)
        elif operation.kind == _DEL:
            base.pop(field, None)
        elif operation.kind == _JOIN:
            base[field] = _joined(base.get(field), value, operation)
        else:
            base[field] = _merged(base, field, value)


def _merged(base: Mapping[str, Any], field: str, value: Any) -> Any:
    known = base.get(field)
    if value is None or known is None or (isinstance(value, tuple) and isinstance(known, list)):
        return _fresh(value)
    if isinstance(known, dict) and isinstance(value, Mapping):
        apply_overlay(known, value)
        return known
    if isinstance(known, list) and isinstance(value, list):
        return [*known, *map(_fresh, value)]
    if isinstance(known, (dict, list)) or isinstance(value, (Mapping, list, tuple)):
        raise TypeError(
            f"overlay field {field!r} is {type(value).__name__}, and the request has {type(known).__name__} there; "
            f"give the same kind, or replace it by PUT({field!r})"
        )
    return value


def _joined(known: Any, value: Any, operation: _Operation) -> list[Any]:
    field, on = operation.field, operation.on
    for name, items in (("request", [] if known is None else known), ("overlay", value)):
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, Mapping) for item in items):
            raise TypeError(f"JOIN of {field!r} needs a list of dicts, and the {name} has something else there")
    result = list(known or [])
    for item in value:
        if on not in item:
            raise ValueError(f"JOIN of {field!r}: an item has no field {on!r} to join on")
        same = [there for there in result if there.get(on) == item[on]]
        for there in same:
            there.update({name: _fresh(part) for name, part in item.items() if name != on})
        if not same:
            result.append(_fresh(item))
    return result


def _fresh(value: Any) -> Any:
    """Return a deep copy of a new value: tuples become lists, and operators inside meet nothing."""
    if isinstance(value, Mapping):
        made: dict[str, Any] = {}
        apply_overlay(made, value)
        return made
    if isinstance(value, (list, tuple)):
        return [_fresh(item) for item in value]
    return copy.deepcopy(value)


# ---- store -----------------------------------------------------------------------------------------------------------


def set_overlay(target: Role | AppDef, namespace: str, kind: str, overlay: Mapping[str, Any]) -> None:
    """Add an overlay to what `target.metadata[namespace][kind]` holds; of two operations on one field the last counts.

    Raises:
        ValueError: the kind is the marker.
    """
    if kind == MARKER:
        raise ValueError(f"overlay kind {kind!r} is reserved for the mark of overlays; name another kind")
    stored = target.metadata.get(namespace)
    if stored is not None and not isinstance(stored, dict):
        warnings.warn(
            f"metadata[{namespace!r}] was {type(stored).__name__} and no overlay; it is replaced", stacklevel=2
        )
    if not isinstance(stored, dict):
        stored = target.metadata[namespace] = {}
    stored[MARKER] = True
    known = stored.get(kind)
    stored[kind] = _combined(known if isinstance(known, Mapping) else {}, overlay)


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
    """Return the overlay of a kind; empty where there is none.

    Text in place of an overlay names a JSON or YAML file that holds it, by path or URI. A namespace that was written
    by hand, without kinds, counts as a whole, with a warning.

    Args:
        target: a role or an app.
        namespace: mostly the name of a scheduler.
        kind: of the native object.
        flat_fallback: False: a namespace without kinds has no overlay.

    Raises:
        ValueError: a file cannot be read, or holds no dict.
    """
    stored = target.metadata.get(namespace)
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
        f"metadata[{namespace!r}] is a flat overlay without kinds and is taken as {kind!r}; use set_overlay",
        stacklevel=2,
    )
    return dict(copy.deepcopy(stored))


@contextlib.contextmanager
def guarded(check: Callable[[str], None]) -> Iterator[None]:
    """Call `check` with each path and address of an overlay before it is opened here; it raises to refuse one."""
    token = _GUARD.set(check)
    try:
        yield
    finally:
        _GUARD.reset(token)


def _load(location: str) -> dict[str, Any]:
    if (check := _GUARD.get()) is not None:
        check(location)
    try:
        document = _parse(_read(location))
    except (OSError, ImportError, ValueError) as error:
        raise ValueError(f"overlay file {location!r} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"overlay file {location!r} holds no mapping; write fields and their values")  # noqa: TRY004 - the file is wrong
    return document


def _read(location: str) -> str:
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        path = Path(unquote(parts.path) if parts.scheme else location)
        # A FIFO would be waited for.
        if path.exists() and not path.is_file():
            raise ValueError("it is no plain file")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    else:
        import fsspec

        with fsspec.open(location, "rb") as file:
            data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError("it has more than 1 MB; no engine takes a request as large as that")
    return data.decode("utf-8")


def _parse(text: str) -> Any:
    import yaml

    kind: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(kind):  # type: ignore[misc] # one of two
        """Knows the one tag that overlays need: a tuple replaces a list."""

    def make_tuple(loader: yaml.SafeLoader, node: yaml.Node) -> tuple[Any, ...]:
        assert isinstance(node, yaml.SequenceNode)
        return tuple(loader.construct_sequence(node, deep=True))

    Loader.add_constructor("tag:yaml.org,2002:python/tuple", make_tuple)
    loader = None
    try:
        # JSON is YAML, too. What is too deep would be composed by recursion.
        _refuse_depth(yaml.parse(text, Loader=Loader))
        loader = Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _weigh(node, 0, {})
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


def _weigh(node: Any, level: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return how many values and levels a node has, those of an alias each time; refuse what has too many."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > _LONGEST_NUMBER:
            raise ValueError(f"it has a number of more than {_LONGEST_NUMBER} letters")
        return 1, 0
    if level > DEEPEST:
        raise ValueError(_TOO_DEEP)
    if id(node) not in known:
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        weights = [_weigh(part, level + 1, known) for part in parts]
        known[id(node)] = 1 + sum(one[0] for one in weights), 1 + max((one[1] for one in weights), default=0)
    values, levels = known[id(node)]
    if level + levels > DEEPEST + 1:
        raise ValueError(_TOO_DEEP)
    if values > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES} values, of which each alias repeats those that it names")
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
    """Refuse top-level fields, whatever the operator.

    Args:
        overlay: to check.
        blocklist: fields that the launcher sets itself.
        forbidden_keys: fields that belong elsewhere.
        overlay_name: for the text, mostly the kind.
        suggestion: where the forbidden fields belong.

    Raises:
        ValueError: names the field.
    """
    fields = [_Operation.of(key).field for key in overlay]
    blocked, forbidden = set(blocklist or ()), set(forbidden_keys or ())
    for field in fields:
        if field in blocked:
            raise ValueError(f"overlay field {overlay_name}.{field} is set by the launcher itself; leave it out")
        if field in forbidden:
            raise ValueError(f"{overlay_name} takes no field {field!r}; {suggestion or 'leave it out'}")


@dataclass(frozen=True)
class OverlaySpec:
    """One kind of overlay of a scheduler, with the fields that it may not touch."""

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
        """Return the checked overlay of the target; empty where there is none.

        Raises:
            ValueError: a field is blocked.
        """
        overlay = get_overlay(target, self.namespace, self.kind, flat_fallback=False)
        validate_overlay(overlay, blocklist=self.blocklist, overlay_name=self.kind)
        return overlay
