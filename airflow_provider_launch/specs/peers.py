"""Names that other launchers give to options and arguments, and their counterparts here; for errors and pages.

The table is `peers.yaml`, which is read only when a name is unknown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from airflow_provider_launch.specs.cases import camel_to_snake

_ROW = re.compile(r"(?P<place>[a-z]+)(?: `(?P<name>[^`]+)`)?(?:; (?P<note>.*))?", re.DOTALL)
_PLACES = {
    "cfg": "option {}",
    "connection": "option {} of the connection",
    "operator": "argument {} of the operator",
    "app": "field {} of the app",
    "role": "field {} of the role",
    "resource": "field {} of the role's resource",
    "overlay": "field {} in an overlay",
}


class Counterpart(NamedTuple):
    """The counterpart of one name of another launcher."""

    peer: str
    """Name of the other launcher."""
    place: str
    """Where the counterpart belongs: `cfg`, `connection`, `operator`, `app`, `role`, `resource`, `overlay`, `none`."""
    name: str
    """The counterpart; empty for the place `none`."""
    note: str
    """A comment: a unit, or why there is no counterpart."""

    def text(self) -> str:
        """Return the counterpart for an error message."""
        note = self.note.replace("`", "'")
        if self.place == "none":
            return f"a name of {self.peer} without a counterpart here: {note}"
        where = _PLACES[self.place].format(repr(self.name))
        return f"a name of {self.peer}; here it is {where}{f' ({note})' if note else ''}"


class Peer(NamedTuple):
    """Another launcher, and its names."""

    title: str
    schedulers: list[str]
    """The schedulers whose options the counterparts are."""
    arguments: dict[str, Counterpart]


@functools.cache
def peers() -> dict[str, Peer]:
    """Return the other launchers by the names of their pages."""
    import yaml

    text = (Path(__file__).parent / "peers.yaml").read_text(encoding="utf-8")
    return {
        page: Peer(
            peer["title"],
            peer["schedulers"],
            {name: _counterpart(peer["title"], row) for name, row in peer["arguments"].items()},
        )
        for page, peer in yaml.safe_load(text).items()
    }


def _counterpart(peer: str, row: str) -> Counterpart:
    found = _ROW.fullmatch(row)
    if found is None:
        raise ValueError(f"peers.yaml: {row!r} is not a place, a name and a note")
    return Counterpart(peer, found["place"], found["name"] or "", found["note"] or "")


def counterpart(name: str, options: Collection[str]) -> Counterpart | None:
    """Return the counterpart of a name of another launcher, in any spelling; None if no launcher has the name.

    Only `options`, those that are possible in this position, are proposed, and fields of the connection if these are
    the options of the scheduler on which the peer runs.
    """
    wanted = _plain(name)
    found = [
        one
        for peer in peers().values()
        for word, one in peer.arguments.items()
        if _plain(word) == wanted
        and (
            one.place not in ("cfg", "connection")
            or one.name in options
            or (one.place == "connection" and _options_of(peer) <= {*options})
        )
    ]
    # An option that is possible in this position first, and a reason why there is no counterpart last.
    return min(found, key=lambda one: (one.place not in ("cfg", "connection"), one.place == "none"), default=None)


def _options_of(peer: Peer) -> set[str]:
    return {one.name for one in peer.arguments.values() if one.place == "cfg"}


def _plain(name: str) -> str:
    return camel_to_snake(name).replace("-", "_").lstrip("_")
