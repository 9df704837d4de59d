"""Foldable groups in Airflow's log view: used for the request, and escaped in the text of apps."""

from __future__ import annotations

# The view folds the log at these words anywhere in a line.
_WORDS = ("::group::", "::endgroup::")


def unfolded(text: str) -> str:
    """Return the text with the fold words of the log view made ineffective but readable."""
    for word in _WORDS:
        # A zero-width space is invisible, and the view no longer finds the word.
        text = text.replace(word, f":\u200b{word[1:]}")
    return text


def folded(title: str, text: str) -> list[str]:
    """Return the lines of a fold, which the view shows closed."""
    return [f"::group::{unfolded(title)}", *unfolded(text).splitlines(), "::endgroup::"]
