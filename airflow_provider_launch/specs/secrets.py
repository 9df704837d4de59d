"""Detect and mask secrets in requests, errors and logs; the list of names is a superset of Airflow's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MASK = "***"
FUNCTION_VARIABLES = "LAUNCH_FUNCTION_"
"""Prefix of the variables with a function and its arguments, which a request shows by their size only."""

# Whole words of a name, or parts of one, as in `DB_PASSWORD`, `dbPassword` and `db-password`.
_PARTS = (
    "passw", "passphrase", "secret", "token", "apikey", "api_key", "accesskey", "access_key", "private", "credential",
    "connection_string", "connectionstring", "webhook_url", "webhookurl", "keyfile", "service_account",
    "serviceaccount", "service_key", "servicekey", "authorization", "bearer", "auth_header", "signing_key",
    "encryption_key", "fernet", "session_cookie", "sessioncookie",
)  # fmt: skip
_WORDS = ("auth", "pwd", "pass", "dsn", "conn", "jwt", "sas", "pat", "key", "cookie", "proxy", "proxies")
_PART = re.compile("|".join(_PARTS), re.IGNORECASE)
_WORD = re.compile(rf"(^|[_.\-])({'|'.join(_WORDS)})($|[_.\-])", re.IGNORECASE)
# With one of these words the name is about a secret, but the value is not one: its location, or a count.
_HARMLESS = re.compile(r"[_.\-](name|id|type|count|size|file|path|mode|timeout)s?$", re.IGNORECASE)
# Every pattern takes linear time: it starts only where a word starts, and reads nothing twice.
_TOKEN = re.compile(r"\S+")
_IMAGE = re.compile(r"(?P<user>[\w.\-]+):(?P<password>[^\s@/:]+)@(?!sha\d+:)[\w.\-]+(?::\d+)?/\S+\Z")
"""An image with registry credentials, as some engines accept it."""
_PORT = re.compile(r"\d{1,5}(?:[/?#,]|\Z)")
_NAME = re.compile(
    r"(?<![\w.\-])-{0,2}(?P<name>[A-Za-z_][\w.\-]*)(?P<quote>\\*[\"'])?[ \t]*(?P<sep>[=:])(?P<gap>[ \t]*)"
)
_FLAG_IN_TEXT = re.compile(r"(?<![\w.\-])--?(?P<name>[A-Za-z][\w.\-]*)(?:[ \t]|\\\r?\n)+(?!-)")
_VALUE = re.compile(
    r"""\\+"(?P<escaped>[^"\\]*)"""
    r"""|"(?P<double>[^"\\]*(?:\\[\s\S][^"\\]*)*)"""
    r"""|'(?P<single>[^']*)"""
    r"""|(?P<plain>(?:(?:bearer|basic|token|digest)[ \t]+)?[^\s"',;&|(){}<>\\]+)""",
    re.IGNORECASE,
)
"""A name with its value inside a text: shell, connection string, JSON, header."""
_LARGEST_NUMBER = 3
"""Characters of the number of parts of a function."""
_REFERENCE = re.compile(r"\$\w+|\$\{\w+\}")
"""A shell variable or a macro: its value is masked where it is set."""
_FLAG = re.compile(r"^(?P<flag>--?[A-Za-z][\w.\-]*)(?P<equals>=)?(?P<value>.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"^(?P<flag>[A-Za-z_]\w*)=(?P<value>.+)$", re.DOTALL)
_SHORT_FLAG = "-p"
_NO_PASSWORD = re.compile(r"[\d:.]*|[-./~$].*", re.DOTALL)
"""Values of `-p` that are not a password: a port, or a path."""
_NAMED_BY_USERS = frozenset({"labels", "annotations", "tags", "options", "config"})
"""Fields of requests whose keys are chosen by users, not by the engine."""


def is_secret_name(name: str) -> bool:
    """Return whether values with this name must be masked."""
    return bool(_PART.search(name) or (_WORD.search(name) and not _HARMLESS.search(name)))


def masked_text(text: str) -> str:
    """Return the text with secrets masked by their form: `postgres://user:***@host`, `password=***`."""
    parts, done = [], 0
    for start, end in _spans(text):
        parts += [text[done:start], MASK]
        done = end
    return "".join([*parts, text[done:]])


def hidden_in_text(text: str) -> list[str]:
    """Return the parts that `masked_text` hides."""
    return [text[start:end] for start, end in _spans(text)]


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `env` with `***` for values of secret-looking names, and for secrets inside other values.

    A function and its arguments are shown as their size, because they may have a megabyte.
    """
    return {name: _masked_variable(name, value) for name, value in env.items()}


def _masked_variable(name: str, value: str) -> str:
    if name.startswith(FUNCTION_VARIABLES):
        return f"(function and arguments, {len(value)} characters)" if len(value) > _LARGEST_NUMBER else value
    return MASK if value and is_secret_name(name) else masked_text(value)


def hidden_in_env(env: Mapping[str, str]) -> list[str]:
    """Return the values, or parts of them, that `masked_env` hides."""
    return [
        value
        for name, text in env.items()
        for value in ([text] if is_secret_name(name) else hidden_in_text(text))
        if value
    ]


def hidden_in_args(args: Sequence[str]) -> list[str]:
    """Return the arguments, or parts of them, that `masked_args` hides."""
    found: list[str] = []
    for arg, hidden in _hidden_parts(args):
        found += hidden_in_text(arg) if hidden is None else [arg[hidden:]]
    return found


def masked_args(args: Sequence[str]) -> list[str]:
    """Return the arguments with `***` for `--password=x`, for the value after `--password` or `-p`, and in texts."""
    return [masked_text(arg) if hidden is None else f"{arg[:hidden]}{MASK}" for arg, hidden in _hidden_parts(args)]


def masked_document(value: Any, name: str = "") -> Any:
    """Return a masked copy of a part of a native request, plain JSON in the field `name`."""
    if isinstance(value, str):
        return masked_text(value)
    if isinstance(value, Mapping):
        if name.lower() in _NAMED_BY_USERS:
            return {
                key: MASK if each and isinstance(each, str) and is_secret_name(str(key)) else masked_document(each)
                for key, each in value.items()
            }
        own = value.get("name", value.get("Name"))
        is_hidden = isinstance(own, str) and isinstance(value.get("value"), str) and is_secret_name(own)
        return {
            key: MASK if is_hidden and key == "value" and each else masked_document(each, str(key))
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        if all(isinstance(each, str) for each in value):
            return masked_args(value)
        return [masked_document(each, name) for each in value]
    return value


def _hidden_parts(args: Sequence[str]) -> Iterator[tuple[str, int | None]]:
    """Return each argument with the position from which it is masked, None if only secrets inside it are masked."""
    hide_next = False
    before = ""
    for arg in args:
        found = _FLAG.match(arg) or _ASSIGNED.match(arg)
        is_flag = bool(found) and arg.startswith("-")
        if hide_next and not is_flag:
            hide_next = False
            yield arg, 0
        elif before == _SHORT_FLAG and not _NO_PASSWORD.fullmatch(arg):
            yield arg, 0
        else:
            hide_next = False
            hidden = None
            if found and is_secret_name(found["flag"].lstrip("-")):
                # Text after a quoted value belongs to a shell.
                if found["value"] and (found["equals"] if is_flag else found["value"][0] not in "\"'"):
                    hidden = found.start("value")
                hide_next = is_flag and not found["value"]
            yield arg, hidden
        before = arg


def _spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of secrets in a text, in order, without overlaps."""
    found = [*_url_spans(text), *_inline_spans(text)] if any(mark in text for mark in "=:") else []
    found += _flag_spans(text) if "-" in text else ()
    kept: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
        else:
            kept[-1] = (kept[-1][0], max(end, kept[-1][1]))
    return kept


def _url_spans(text: str) -> Iterator[tuple[int, int]]:
    """Return the spans of passwords in URLs. The user name is shown; the text between it and the host is not."""
    if "@" not in text:
        return
    for token in _TOKEN.finditer(text):
        word = token[0]  # each access creates a copy
        if image := _IMAGE.match(word):
            yield token.start() + image.start("password"), token.start() + image.end("password")
        # There is one URL between two markers.
        begin = word.find("://")
        while begin >= 0:
            after = word.find("://", begin + 3)
            address = word[begin + 3 : after if after >= 0 else None]
            if begin > 0 and (span := _password_in(address)):
                offset = token.start() + begin + 3
                yield offset + span[0], offset + span[1]
            begin = after


def _password_in(address: str) -> tuple[int, int] | None:
    colon = address.find(":")
    if colon < 0 or any(mark in address[:colon] for mark in "/@"):
        return None
    start = colon + 1
    slash = address.find("/", start)
    end = address.rfind("@", start, slash if slash >= 0 else None)
    if end < 0 and not _PORT.match(address, start):
        # A password with slashes; a quote ends the URL.
        quote = min((at for mark in "\"'" if (at := address.find(mark, start)) >= 0), default=len(address))
        end = address.rfind("@", start, quote)
    return (start, end) if end > start else None


def _inline_spans(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    while found := _NAME.search(text, at):
        at = found.end()
        if not is_secret_name(found["name"]) or not _is_assignment(text, found):
            continue
        value = _VALUE.match(text, at)
        if value is None:
            continue
        at = value.end()
        kind = str(value.lastgroup)
        if value[kind] and not _REFERENCE.fullmatch(value[kind]):
            yield value.span(kind)


def _flag_spans(text: str) -> Iterator[tuple[int, int]]:
    """Return the spans of values after flags in a command: `login --password x`, `login -password x`."""
    at = 0
    while found := _FLAG_IN_TEXT.search(text, at):
        at = found.end()
        value = _VALUE.match(text, at) if is_secret_name(found["name"]) else None
        if value is not None:
            at, kind = value.end(), str(value.lastgroup)
            if value[kind] and not _REFERENCE.fullmatch(value[kind]):
                yield value.span(kind)


def _is_assignment(text: str, found: re.Match[str]) -> bool:
    """Return whether the colon separates name and value, unlike in a sentence such as `the token: expired`."""
    if found["sep"] == "=" or found["quote"]:
        return True
    begin = found.start()
    return bool(found["gap"]) and (begin == 0 or text[begin - 1] in "\n\"'{,")
