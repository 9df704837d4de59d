"""Groups of log lines, which Airflow's log view shows closed."""

from __future__ import annotations

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
