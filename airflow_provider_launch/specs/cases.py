"""Convert names between `cluster_name` and `clusterName`."""

from __future__ import annotations

import re


def snake_to_camel(name: str) -> str:
    """Return `clusterName` for `cluster_name`; a leading underscore stays."""
    return re.sub(r"(?<=[A-Za-z0-9])_+([A-Za-z0-9])", lambda match: match.group(1).upper(), name)


def camel_to_snake(name: str) -> str:
    """Return `cluster_name` for `clusterName`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def is_spelling_of(word: str, name: str) -> bool:
    """Return whether `word` is `name` or its camelCase form, part by part of a dotted name."""
    words, names = word.split("."), name.split(".")
    return len(words) == len(names) and all(w in {n, snake_to_camel(n)} for w, n in zip(words, names, strict=True))
