"""App ids: readable, valid on every scheduler, and either random or derived from a key."""

from __future__ import annotations

import hashlib
import os
import re

# Without vowels and without ambiguous characters, so that no id is a word or is misread.
START_CANDIDATES = "bcdfghjklmnpqrstvwxz"
END_CANDIDATES = START_CANDIDATES + "012345679"


def random_uint64() -> int:
    """Return 64 random bits from the operating system, independent of `random.seed`."""
    return int.from_bytes(os.urandom(8), byteorder="big")


def random_id(max_length: int | None = None) -> str:
    """Return a random id that starts with a letter, truncated to `max_length`."""
    return _spelt(random_uint64())[: None if max_length is None else max(max_length, 0)]


def make_unique(name: str, string_length: int = 0) -> str:
    """Return `name-<random id>`; the random part is truncated to `string_length`, unless that is 0."""
    return f"{name}-{random_id(string_length or None)}"


def make_stable(name: str, key: str, max_length: int = 0) -> str:
    """Return `name-<id>`, always the same for the same name and key; 0 means no limit.

    If the text is too long, the name is truncated and the id is not, so truncated names still get different ids.
    """
    digest = hashlib.sha256(f"{len(name)}:{name}{key}".encode()).digest()
    spelt = _spelt(int.from_bytes(digest[:8], byteorder="big"))
    if max_length <= 0:
        return f"{name}-{spelt}"
    kept = name[: max(max_length - len(spelt) - 1, 0)].rstrip("-")
    return f"{kept}-{spelt}" if kept else spelt[:max_length]


def slug(text: str, length: int) -> str:
    """Return the text as the readable part of an id: lower case letters, digits and `-`, starting with a letter.

    It is valid on every scheduler and has at most `length` characters. Different texts may give the same slug.
    """
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:length].strip("-")
    return kept if kept[:1].isalpha() else f"a{kept}"[:length].rstrip("-")


def _spelt(number: int) -> str:
    """Return the digits of the number, lowest first; the first digit is a letter."""
    number, digit = divmod(number, len(START_CANDIDATES))
    text = START_CANDIDATES[digit]
    while number:
        number, digit = divmod(number, len(END_CANDIDATES))
        text += END_CANDIDATES[digit]
    return text
