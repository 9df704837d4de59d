"""Placeholders in roles that are replaced per replica."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from airflow_provider_launch.specs.roles import Role

_RoleT = TypeVar("_RoleT", bound="Role")


class _Deprecated(type):
    """Names of the older model, which some apps still use."""

    @property
    def base_img_root(cls) -> str:
        """Deprecated: the root of the image; use `img_root`."""
        warnings.warn("macros.base_img_root is deprecated; use macros.img_root", DeprecationWarning, stacklevel=2)
        return "${base_img_root}"


class macros(metaclass=_Deprecated):  # noqa: N801 - a name of the launcher model
    """The placeholders. Write `macros.replica_id` into an argument, a value of env, or a text in metadata.

    `$$` becomes `$`; every other `$` stays: `${HOME}` is left for the shell.
    """

    img_root = "${img_root}"
    """Root of the image inside the replica; may be empty."""
    app_id = "${app_id}"
    """The app id, or a shell expression for it if the scheduler assigns the id at submission."""
    replica_id = "${replica_id}"
    """Number of the replica within its role, from 0."""
    rank0_env = "${rank0_env}"
    """*Name* of the environment variable that contains the host of replica 0 of the first role."""
    rank0_host = "${rank0_host}"
    """The host itself, in args and env."""

    @staticmethod
    def port(role: str, name: str) -> str:
        """Return the macro for a port of `port_map`, in args and env."""
        return f"${{port.{role}.{name}}}"

    @dataclass
    class Values:
        """The values of the placeholders for one replica."""

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str
        base_img_root: str = ""
        """Deprecated: empty means that the placeholder becomes `img_root`."""
        rank0_host: str | None = None
        """None leaves the placeholder as it is."""
        ports: Mapping[str, str] = field(default_factory=dict)
        """`role.port` to the port; the macros of other ports stay."""

        def apply(self, role: _RoleT) -> _RoleT:
            """Return a deep copy of the role with the macros in args, values of env and texts in metadata replaced."""
            # Not copy.deepcopy(role): apps have thousands of replicas, and a dry run copies the role for each.
            replica = copy.copy(role)
            memo: dict[int, Any] = {}
            for name, value in vars(role).items():
                if name not in SUBSTITUTED:
                    setattr(replica, name, _deep(value, memo))
            replica.args = [self.substitute(arg) for arg in role.args]
            replica.env = {key: self.substitute(value) for key, value in role.env.items()}
            replica.metadata = self._nested(role.metadata, memo)
            return replica

        def substitute(self, arg: str) -> str:
            """Return the text with the placeholders replaced once; replaced text is not scanned again."""
            if "$" not in arg:
                return arg
            known = {**self.to_dict(), **{f"port.{name}": port for name, port in self.ports.items()}}
            if self.rank0_host is not None:
                known["rank0_host"] = self.rank0_host
            return _Template(arg).safe_substitute(known, base_img_root=self.base_img_root or self.img_root)

        def to_dict(self) -> dict[str, str]:
            """Return the values by placeholder name."""
            return {
                "img_root": self.img_root,
                "app_id": self.app_id,
                "replica_id": self.replica_id,
                "rank0_env": self.rank0_env,
            }

        def _nested(self, value: Any, memo: dict[int, Any]) -> Any:
            if isinstance(value, str):
                return self.substitute(value)
            if isinstance(value, dict):
                return {key: self._nested(item, memo) for key, item in value.items()}
            if isinstance(value, list):
                return [self._nested(item, memo) for item in value]
            return copy.deepcopy(value, memo)

    @staticmethod
    def escape(text: str) -> str:
        """Return the text escaped, so that substitution gives the original text."""
        return text.replace("$", "$$")

    @staticmethod
    def substitute(args: list[str], img_root: str, app_id: str, replica_id: str, rank0_env: str = "") -> list[str]:
        """Return the args with the placeholders replaced."""
        values = macros.Values(img_root=img_root, app_id=app_id, replica_id=replica_id, rank0_env=rank0_env)
        return [values.substitute(arg) for arg in args]


def address_macros(role: Role) -> list[str]:
    """Return the macros for hosts and ports in args and env of a role, each once."""
    texts = (*role.args, *role.env.values())
    return [*dict.fromkeys(found for text in texts for found in _addresses_in(text))]


def port_macros(text: str) -> list[str]:
    """Return the ports that macros in a text name, as `role.port`."""
    return [found.removeprefix("${port.")[:-1] for found in _addresses_in(text) if found != macros.rank0_host]


def names_rank0(role: Role) -> bool:
    """Return whether a replica of the role needs the host of replica 0 of the first role."""
    texts = (*role.args, *role.env.values())
    return any(macros.rank0_env in text or macros.rank0_host in text for text in texts)


def _addresses_in(text: str) -> list[str]:
    return _ADDRESSES.findall(text) if "${" in text else []


def near_misses(role: Role) -> list[tuple[str, str]]:
    """Return pairs of misspelt placeholder and the placeholder that is probably meant."""
    known = {_letters(name): name for name in (*macros.Values("", "", "", "").to_dict(), "rank0_host")}
    texts = (*role.args, *role.env.values())
    found = dict.fromkeys(name for text in texts for name in _IN_BRACES.findall(text))
    misses = []
    for name in found:
        # A variable of the role is for the shell, however it is spelt.
        if name in known.values() or name in role.env or name == "base_img_root":
            continue
        # Imported here, because only errors need it.
        import difflib

        close = difflib.get_close_matches(_letters(name), known, n=1, cutoff=_MIN_SIMILARITY)
        misses += [(name, known[close[0]])] if close else []
    return misses


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


class _Template(Template):
    # A port is named by its role, whose name may have any letters.
    braceidpattern = r"(?a:[_a-zA-Z][_a-zA-Z0-9]*|port\.[^{}$\n]+)"


_ADDRESSES = re.compile(r"(?<!\$)(?:\$\$)*(\$\{(?:rank0_host|port\.[^{}$\n]+)\})")
_IN_BRACES = re.compile(r"(?<!\$)\$\{(\w+)\}")
_MIN_SIMILARITY = 0.85
SUBSTITUTED = frozenset({"args", "env", "metadata"})
"""The fields of a role in which macros are replaced."""


def _deep(value: Any, memo: dict[int, Any]) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if value == {} and type(value) is dict:
        return {}
    return copy.deepcopy(value, memo)
