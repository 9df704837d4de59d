"""Reads the files of a user: configuration, connections, apps. Their size, kind and owner are checked first.

Errors are a `ValueError` or an `OSError` with the path in it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

LARGEST_FILE = 4 * 1024 * 1024
"""Maximum bytes of such a file; a person writes far less."""
_MOST_VALUES = 100_000
"""Maximum values of a document, where each use of an alias of YAML counts again."""
_TOO_MANY = f"it has more than {_MOST_VALUES} values; aliases count at each use"


def read_text(path: str | Path) -> str:
    """Return the text of a file; a link is followed.

    A ValueError means that it is not a regular file, is too large, or is not UTF-8.
    """
    # A FIFO without a writer would block.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is not a regular file")
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ValueError(f"{path} has more than {LARGEST_FILE >> 20} MB, so that it is not such a file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8") from None


def owner_problem(path: str | Path, *, any_owner: bool = False) -> str | None:
    """Return why other users may have written a file, with the fix; None if they cannot.

    With `any_owner` the file of another user is accepted, because the caller has named it.
    """
    status = Path(path).stat()
    if status.st_mode & stat.S_IWOTH:
        return f"{path} can be written by all users; run chmod o-w {path}"
    if not any_owner and status.st_uid not in {0, os.geteuid()}:
        return f"{path} belongs to user {status.st_uid}"
    return None


def read_document(path: str | Path) -> Any:
    """Return the content of a JSON or YAML file, by the ending of its name; errors as in its two steps."""
    return parse_document(read_text(path), is_json=str(path).endswith(".json"))


def parse_document(text: str, *, is_json: bool) -> Any:
    """Return a document; None if it is empty.

    A ValueError means that it is not valid, an object has a key twice, or it is too deep or too large.
    """
    if not text.strip():
        return None
    try:
        found = json.loads(text, object_pairs_hook=_object) if is_json else _of_yaml(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _refuse_large(found)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has {key!r} twice; remove one of them")
        found[key] = value
    return found


def _of_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Loader that refuses a key which is there twice; YAML itself takes the last one."""

        merged = 0

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            known: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                if key.value in known:
                    raise ValueError(
                        f"it has {key.value!r} twice, again in line {key.start_mark.line + 1}; remove one of them"
                    )
                known.add(key.value)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            before = len(node.value)
            super().flatten_mapping(node)
            # Merges of merges multiply before the document exists, so `_refuse_large` would come too late.
            self.merged += max(0, len(node.value) - before)
            if self.merged > _MOST_VALUES:
                raise ValueError(_TOO_MANY)

    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(f"it is not valid YAML: {' '.join(str(error).split())}") from None


def _refuse_large(document: Any) -> None:
    """Refuse a document whose aliases stand for more values than a file can have, or for themselves."""
    level, count = [document], 0
    while level:
        count += len(level)
        if count > _MOST_VALUES:
            raise ValueError(_TOO_MANY)
        below: list[Any] = []
        for value in level:
            if isinstance(value, (dict, list)):
                below.extend(value.values() if isinstance(value, dict) else value)
                if len(below) > _MOST_VALUES:
                    break
        level = below
