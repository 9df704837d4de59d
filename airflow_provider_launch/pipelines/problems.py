"""Problems of a pipeline, each with its line and a suggestion, reported all at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.specs.secrets import masked_text

_LONGEST = 2000
"""Maximum characters of a problem, which may quote a value of the file."""


@dataclass(frozen=True)
class Place:
    """A position in a pipeline."""

    file: str = ""
    """Path of the file; empty for a pipeline made in Python."""
    line: int = 0
    """Line, counted from 1; 0 if there is no file."""
    step: str = ""
    """The step with its parents: `split / train`."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else (f"{self.file}: " if self.file else "")
        return f"{where}step {self.step!r}: " if self.step else where


@dataclass(frozen=True)
class Problem:
    """One problem, and how to fix it, without secrets: all users of Airflow see it."""

    text: str
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        text = self.text if len(self.text) <= _LONGEST else f"{self.text[:_LONGEST]}..."
        object.__setattr__(self, "text", masked_text(text))

    @property
    def line(self) -> int:
        """The line in the file, from 1; 0 if there is none."""
        return self.place.line

    @property
    def step(self) -> str:
        """The step with the problem; empty for a problem of the file."""
        return self.place.step

    def __str__(self) -> str:
        return f"{self.place}{self.text}"


class PipelineError(InvalidAppError):
    """A pipeline is invalid; `problems` lists all reasons."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"the pipeline has {count}:", *map(str, problems)]))


def closest(name: object, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown name."""
    names = [str(one) for one in known]
    # Imported here, because only errors need it.
    import difflib

    close = difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(sorted(names)[:12])
    return f"there are {shown}" if shown else "there are none"
