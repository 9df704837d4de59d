"""What is wrong with a pipeline: all of it at once, each with its line and a suggestion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from airflow_provider_launch.specs.errors import InvalidAppError


@dataclass(frozen=True)
class Place:
    """Where something stands."""

    file: str = ""
    """Path of the file; empty for a pipeline that is made in Python."""
    line: int = 0
    """Counted from 1; 0 where there is no file."""
    step: str = ""
    """The step, with those around it: `split / train`."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else (f"{self.file}: " if self.file else "")
        return f"{where}step {self.step!r}: " if self.step else where


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and its cure."""

    text: str
    place: Place = field(default_factory=Place)

    @property
    def line(self) -> int:
        """The line in the file, from 1; 0 if there is none."""
        return self.place.line

    @property
    def step(self) -> str:
        """The step it is about; empty if it is about the file."""
        return self.place.step

    def __str__(self) -> str:
        return f"{self.place}{self.text}"


class PipelineError(InvalidAppError):
    """A pipeline is wrong; `problems` has every reason."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"the pipeline has {count}:", *map(str, problems)]))


def closest(name: object, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown name."""
    names = [str(one) for one in known]
    close = difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(sorted(names)[:12])
    return f"there are {shown}" if shown else "there are none"
