"""A YAML file as plain data, with the line of each key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_launch.pipelines.problems import Place, Problem

KeyPath = tuple[Hashable, ...]
LARGEST_FILE = 4 * 1024 * 1024
DEEPEST = 100
"""Levels of nested mappings and lists; limited because the readers recurse."""
MOST_VALUES = 100_000
"""Values in one file; the values behind an alias count each time."""
_MERGE = "tag:yaml.org,2002:merge"
_LONGEST_NUMBER = 100


@dataclass(frozen=True)
class Document:
    """Plain data, with the position of each part."""

    data: Any
    file: str = ""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    shared: frozenset[KeyPath] = frozenset()
    """Top-level keys whose values an alias uses elsewhere in the file."""
    written: Mapping[KeyPath, str] = field(default_factory=dict)
    """How the file writes the values that YAML does not read as text: `on`, `1.10`."""

    def place(self, path: KeyPath, step: str = "") -> Place:
        """Return the position of a key, or of its nearest parent."""
        while path and path not in self.lines:
            path = path[:-1]
        return Place(self.file, self.lines.get(path, 0), step)


def load_document(path: Path, shown: str | None = None) -> tuple[Document, list[Problem]]:
    """Return the content of a file, and the problems that kept parts of it from being read.

    Args:
        path: the path of the file.
        shown: its name in messages.
    """
    name = shown or str(path)
    try:
        text = read_text(path)
    except _BoundError as error:
        return Document({}, name), [Problem(str(error), Place(name))]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return Document({}, name), [Problem(f"cannot be read: {reason}", Place(name))]
    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = kind(text)
    builder = _Builder(loader, name)
    try:
        _refuse_depth(yaml.parse(text, Loader=kind), name)
        node = loader.get_single_node()
        data = builder.build(node, ()) if node is not None else {}
    except _BoundError as error:
        return Document({}, name), [Problem(str(error), error.place)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        # The C library reads ahead, and since 0.2.6 it has a limit of its own.
        text = _TOO_DEEP if "nesting depth" in reason else f"is not valid YAML: {reason}"
        return Document({}, name), [Problem(text, Place(name, mark.line + 1 if mark else 0))]
    finally:
        loader.dispose()
    return Document(data, name, builder.lines, builder.shared, builder.written), builder.problems


def read_text(path: Path) -> str:
    """Return the text of a file of bounded size.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8 text.
        ValueError: it is too large, or not a regular file.
    """
    # Reading a FIFO would block.
    if path.exists() and not path.is_file():
        raise _BoundError("is not a regular file; put the pipeline into one")
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise _BoundError("has more than 4 MB; put large values into a file that the steps read")
    return data.decode("utf-8")


def _refuse_depth(events: Iterable[yaml.Event], file: str) -> None:
    """Refuse deep nesting before composing, which recurses in C without a limit."""
    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                mark = event.start_mark
                raise _BoundError(_TOO_DEEP, Place(file, mark.line + 1 if mark else 0))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


_TOO_DEEP = f"is nested more than {DEEPEST} levels deep; move inner parts into separate files, or nest less"


class _BoundError(ValueError):
    def __init__(self, text: str, place: Place | None = None) -> None:
        super().__init__(text)
        self.place = place or Place()


class _Builder:
    """Converts YAML nodes into plain data, with the line of each."""

    def __init__(self, loader: Any, file: str) -> None:
        self._loader = loader
        self._file = file
        self.lines: dict[KeyPath, int] = {}
        self.written: dict[KeyPath, str] = {}
        self.problems: list[Problem] = []
        self._open: list[int] = []
        self._first: dict[int, KeyPath] = {}
        self._reused: set[KeyPath] = set()
        self._count = 0

    @property
    def shared(self) -> frozenset[KeyPath]:
        return frozenset(path[:1] for path in self._reused)

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the data of the node at `path`."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if self._count > MOST_VALUES:
            raise _BoundError(
                f"has more than {MOST_VALUES} values, because each alias repeats the values that it names; "
                "use fewer aliases, or put large values into a file that the steps read",
                self._place(node),
            )
        if len(self._open) > DEEPEST:
            raise _BoundError(_TOO_DEEP, self._place(node))
        if id(node) in self._open:
            self.problems.append(
                Problem("an alias refers to a part that contains it; write that part out", self._place(node))
            )
            return None
        first = self._first.setdefault(id(node), path)
        if first != path:
            self._reused.add(first)
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, at)) for at, item in enumerate(node.value)]
            value = self._scalar(node)
            if value is not None and not isinstance(value, (str, bytes)):
                self.written[path] = node.value
            return value
        finally:
            self._open.pop()

    def _scalar(self, node: yaml.Node) -> Any:
        # Numbers such as `1:00:00` take quadratic time.
        if not node.tag.endswith(":str") and len(node.value) > _LONGEST_NUMBER:
            self.problems.append(Problem(f"is a number of {len(node.value)} characters; quote it", self._place(node)))
            return None
        try:
            return self._loader.construct_object(node)
        except ValueError as error:
            self.problems.append(Problem(f"{node.value!r} is not a valid value: {error}; quote it", self._place(node)))
            return None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                for key, value in self._merged(value_node, path):
                    data.setdefault(key, value)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem("a key must be text", self._place(key_node)))
                continue
            # As it is written, because YAML reads `on` and `no` as true and false, and `010` as 8.
            key = key_node.value
            if key in own:
                self.problems.append(Problem(f"{key!r} is given twice; keep one", self._place(key_node)))
            own.add(key)
            self.lines[(*path, key)] = key_node.start_mark.line + 1
            data[key] = self.build(value_node, (*path, key))
        return data

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[Any, Any]]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for part in parts:
            first = self._first.get(id(part))
            if first is not None:
                self._reused.add(first)
            found = self.build(part, (*path, "<<"))
            if isinstance(found, dict):
                yield from found.items()
            else:
                self.problems.append(Problem("<< must be followed by a mapping", self._place(part)))

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._file, node.start_mark.line + 1)
