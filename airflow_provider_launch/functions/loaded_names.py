"""The global names and the modules that compiled code uses."""

from __future__ import annotations

import dis
import re
import sys
from dataclasses import dataclass, field
from types import CodeType

_OPS = dis.opmap
_LOAD_GLOBAL, _IMPORT, _EXTENDED = _OPS["LOAD_GLOBAL"], _OPS["IMPORT_NAME"], _OPS["EXTENDED_ARG"]
_LOAD_NAME = {_OPS[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in _OPS}
_STORE_NAME, _STORE_GLOBAL = _OPS["STORE_NAME"], _OPS["STORE_GLOBAL"]
_SOUGHT = re.compile(b"[" + re.escape(bytes([_LOAD_GLOBAL, *_LOAD_NAME, _STORE_NAME, _STORE_GLOBAL, _IMPORT])) + b"]")
# Since Python 3.11 the lowest bit of the argument of LOAD_GLOBAL has another meaning (documentation of `dis`).
_SHIFT = 1 if sys.version_info >= (3, 11) else 0


@dataclass
class Names:
    """Names in the order of their first use."""

    needed: dict[str, None] = field(default_factory=dict)
    maybe: dict[str, None] = field(default_factory=dict)
    """Names that a class body or the piece itself may define before it uses them."""
    modules: dict[str, None] = field(default_factory=dict)
    """Modules of import statements."""
    made: dict[str, None] = field(default_factory=dict)
    """Names to which functions assign with `global`."""


def names_in(code: CodeType, found: Names | None = None) -> Names:
    """Return the names that the code, and the code inside of it, look up in their module.

    A search in the code itself, because `dis.get_instructions` takes many times as long.
    """
    found = Names() if found is None else found
    names, ops, arguments = code.co_names, code.co_code[::2], code.co_code[1::2]
    targets = {_LOAD_GLOBAL: found.needed, _STORE_GLOBAL: found.made, _IMPORT: found.modules}
    loaded: list[str] = []
    stored: set[str] = set()
    for match in _SOUGHT.finditer(ops):
        at = before = match.start()
        op, argument = ops[at], arguments[at]
        while before and ops[before - 1] == _EXTENDED:
            # The rest of a large argument.
            before -= 1
            argument |= arguments[before] << (8 * (at - before))
        name = names[argument >> _SHIFT if op == _LOAD_GLOBAL else argument]
        if op in targets:
            targets[op][name] = None
        elif op in _LOAD_NAME:
            loaded.append(name)
        else:
            stored.add(name)
    for name in loaded:
        (found.maybe if name in stored else found.needed)[name] = None
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names_in(const, found)
    return found
