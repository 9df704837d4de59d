"""Text helpers: names that native systems accept, suggestions for misspelt names, and groups of log lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def normalize_str(data: str) -> str:
    """Return `data` in lower case, with only `[a-z0-9-]` and no leading dash: `_-Job!` gives `job`."""
    return re.sub(r"[^a-z0-9-]", "", data.lower()).lstrip("-")


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to `word`, or None if none is similar."""
    by_lower = {name.lower(): name for name in known}
    # Imported here, because only errors need it.
    import difflib

    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


START, END = "::group::", "::endgroup::"
"""The log view folds the log at these words, anywhere in a line."""


def unfolded(text: str) -> str:
    """Return the text with the fold words of the log view made ineffective but readable."""
    for word in (START, END):
        # A zero-width space is invisible, and the view no longer finds the word.
        text = text.replace(word, f":\u200b{word[1:]}")
    return text


def folded(title: str, text: str) -> list[str]:
    """Return the lines of a group."""
    return [f"{START}{unfolded(title)}", *unfolded(text).splitlines(), END]
