"""Reads a mapping of a file field by field; invalid and unknown fields become problems."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from airflow_provider_launch.pipelines.document import Document, KeyPath
from airflow_provider_launch.pipelines.problems import Place, Problem, closest

_MISSING = object()


class Fields:
    """The values of a mapping; records which fields were read.

    Args:
        document: the file.
        path: of the mapping.
        problems: problems are added here.
        step: the step of the mapping, for messages.
    """

    def __init__(self, document: Document, path: KeyPath, problems: list[Problem], step: str = "") -> None:
        self._document = document
        self._path = path
        self._problems = problems
        self._step = step
        self._known: set[Hashable] = set()
        found = _at(document.data, path)
        self.data: Mapping[Any, Any] = found if isinstance(found, Mapping) else {}
        if not isinstance(found, Mapping):
            self.wrong(None, f"must be a mapping, not {_kind(found)}")

    def place(self, key: Hashable | None = None) -> Place:
        """Return the position of a field."""
        return self._document.place(self._path if key is None else (*self._path, key), self._step)

    def wrong(self, key: Hashable | None, text: str) -> None:
        """Add a problem of a field, or of the mapping itself."""
        own = f"{self._path[-1]!r} " if self._path and not self._step else ""
        name = own if key is None else f"{key!r} "
        self._problems.append(Problem(f"{name}{text}", self.place(key)))

    def has(self, *keys: str) -> str | None:
        """Return which of several spellings is used; using two is a problem."""
        self._known.update(keys)
        given = [key for key in keys if key in self.data]
        if len(given) > 1:
            self.wrong(given[1], f"means the same as {given[0]!r}; keep one")
        return given[0] if given else None

    def text(self, *keys: str, required: str = "") -> str:
        """Return a text; numbers are converted."""
        key = self.has(*keys)
        value = self.data[key] if key else None
        if value is None or value == "":
            if required:
                self.wrong(None, f"has no {keys[0]!r}; {required}")
            return ""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self.wrong(key, f"must be text, not {_kind(value)}")
            return ""
        return str(value)

    def number(self, *keys: str, least: float, whole: bool = True) -> Any:
        """Return a number, or None."""
        key = self.has(*keys)
        value = self.data[key] if key else None
        if value is None:
            return None
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or value < least:
            self.wrong(key, f"must be a {'whole ' if whole else ''}number of at least {least:g}, not {value!r}")
            return None
        return value

    def flag(self, *keys: str, default: bool) -> bool:
        """Return true or false."""
        key = self.has(*keys)
        value = self.data[key] if key else default
        if not isinstance(value, bool):
            self.wrong(key, f"must be true or false, not {value!r}")
            return default
        return value

    def mapping(self, *keys: str) -> dict[str, Any]:
        """Return a mapping with text keys."""
        key = self.has(*keys)
        value = self.data[key] if key else None
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(key, f"must be a mapping, not {_kind(value)}")
            return {}
        return {str(name): item for name, item in value.items()}

    def texts(self, *keys: str) -> tuple[str, ...]:
        """Return a list of texts; a single text becomes a list."""
        key = self.has(*keys)
        value = self.data[key] if key else None
        if value is None:
            return ()
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, str) and item for item in items):
            self.wrong(key, f"must be a text or a list of texts, not {value!r}")
            return ()
        return tuple(items)

    def any(self, *keys: str, default: Any = None) -> Any:
        """Return a value unchecked."""
        key = self.has(*keys)
        return default if key is None else self.data[key]

    def refuse_others(self, what: str, more: Iterable[str] = ()) -> None:
        """Add a problem for every field that was not read."""
        known = {str(name) for name in self._known} | set(more)
        for key in self.data:
            if key not in self._known and key not in more:
                self.wrong(key, f"is not a field of {what}; {closest(key, known)}")


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = data[key]
    return data


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {"str": "text", "list": "a list", "dict": "a mapping", "bool": "true or false"}.get(
        type(value).__name__, f"{value!r}"
    )
