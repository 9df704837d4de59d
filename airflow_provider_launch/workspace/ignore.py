"""Apply an ignore file to the files of a workspace; does no I/O."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

LAUNCH_IGNORE = ".launchignore"
TORCHX_IGNORE = ".torchxignore"
DOCKER_IGNORE = ".dockerignore"
DOCKERFILE = "Dockerfile.torchx"
"""The build file of a workspace image, in the root of the workspace; no pattern leaves it out."""
_NEVER = frozenset({".", "", DOCKERFILE})


@dataclass(frozen=True)
class IgnoreRules:
    """The patterns that apply in one directory, and whether entries that match none are left out."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()
    """Patterns, each with whether it leaves out its matches."""
    leaves_out: bool = False

    @staticmethod
    def of(lines: Iterable[str]) -> IgnoreRules:
        """Return the rules of an ignore file: one shell pattern per line, `#` comments, `!` includes again."""
        found = []
        for line in map(str.strip, lines):
            if not line or line.startswith("#"):
                continue
            pattern = line.removeprefix("!").strip().removeprefix("./").strip("/")
            if pattern:
                found.append((re.compile(fnmatch.translate(pattern)), not line.startswith("!")))
        return IgnoreRules(tuple(found))

    def is_left_out(self, path: str) -> bool:
        """Return whether a file is left out; `path` is relative to the root, with `/`."""
        return self.inside(path).leaves_out

    def inside(self, path: str) -> IgnoreRules:
        """Return the rules within a directory: the patterns after the last one that matches it, and its own state."""
        if path in _NEVER:
            return self if path != DOCKERFILE else IgnoreRules()
        for at in range(len(self.patterns) - 1, -1, -1):
            pattern, leaves_out = self.patterns[at]
            if pattern.match(path):
                return IgnoreRules(self.patterns[at + 1 :], leaves_out)
        return self

    @property
    def keeps_nothing(self) -> bool:
        """Return whether all left-out files stay left out: no later pattern includes any again."""
        return self.leaves_out and all(leaves_out for _, leaves_out in self.patterns)
