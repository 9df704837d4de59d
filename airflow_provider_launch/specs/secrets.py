"""What looks like a secret: one list of names for requests, errors and logs, a superset of Airflow's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

__all__ = ["MASK", "hidden_in_args", "hidden_in_env", "is_secret_name", "masked_args", "masked_env", "masked_text"]

MASK = "***"

# Whole words of a name, or parts of one, as `DB_PASSWORD`, `dbPassword` and `db-password` have them.
_PARTS = (
    "passw", "passphrase", "secret", "token", "apikey", "api_key", "accesskey", "access_key", "private", "credential",
    "connection_string", "connectionstring", "webhook_url", "webhookurl", "keyfile", "service_account",
    "serviceaccount", "service_key", "servicekey", "authorization", "bearer", "auth_header", "signing_key",
    "encryption_key", "fernet", "session_cookie", "sessioncookie",
)  # fmt: skip
_WORDS = ("auth", "pwd", "pass", "dsn", "conn", "jwt", "sas", "pat", "key", "cookie", "proxy", "proxies")
_PART = re.compile("|".join(_PARTS), re.IGNORECASE)
_WORD = re.compile(rf"(^|[_.\-])({'|'.join(_WORDS)})($|[_.\-])", re.IGNORECASE)
# Such a word may be about a secret without being one: where it is, or how many there are.
_HARMLESS = re.compile(r"[_.\-](name|id|type|count|size|file|path|mode|timeout)s?$", re.IGNORECASE)
# The user is no secret; what follows it, up to the host, is.
_IN_URL = re.compile(r"(?P<begin>[a-z][a-z0-9+.\-]*://[^/\s:@]*):(?P<password>[^/\s@]+)@", re.IGNORECASE)
_FLAG = re.compile(r"^(?P<flag>--?[A-Za-z][\w.\-]*)(?P<equals>=)?(?P<value>.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"^(?P<flag>[A-Za-z_]\w*)=(?P<value>.+)$", re.DOTALL)


def is_secret_name(name: str) -> bool:
    """Return whether what stands under this name is to be hidden."""
    return bool(_PART.search(name) or (_WORD.search(name) and not _HARMLESS.search(name)))


def masked_text(text: str) -> str:
    """Return the text without the passwords of its addresses: `postgres://user:***@host`."""
    return _IN_URL.sub(rf"\g<begin>:{MASK}@", text)


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `env` in which values under secret-looking names, and passwords in addresses, are `***`."""
    return {name: MASK if value and is_secret_name(name) else masked_text(value) for name, value in env.items()}


def hidden_in_env(env: Mapping[str, str]) -> list[str]:
    """Return the values, or parts of them, that `masked_env` hides."""
    return [
        value for name, text in env.items() for value in ([text] if is_secret_name(name) else _in_urls(text)) if value
    ]


def hidden_in_args(args: Sequence[str]) -> list[str]:
    """Return the arguments, or parts of them, that `masked_args` hides."""
    found: list[str] = []
    for arg, shown in zip(args, masked_args(args), strict=True):
        if shown == arg:
            continue
        if shown == MASK:
            found.append(arg)
        elif shown == f"{arg.partition('=')[0]}={MASK}":
            found.append(arg.partition("=")[2])
        else:
            found += _in_urls(arg)
    return found


def _in_urls(text: str) -> list[str]:
    return [found["password"] for found in _IN_URL.finditer(text)]


def masked_args(args: Sequence[str]) -> list[str]:
    """Return the arguments with `***` for `--password=x`, for what follows `--password`, and in addresses."""
    shown: list[str] = []
    hide_next = False
    for arg in args:
        found = _FLAG.match(arg) or _ASSIGNED.match(arg)
        is_flag = bool(found) and arg.startswith("-")
        if hide_next and not is_flag:
            shown.append(MASK)
            hide_next = False
            continue
        hide_next = False
        if found and is_secret_name(found["flag"].lstrip("-")):
            if found["value"] and (not is_flag or found["equals"]):
                shown.append(f"{found['flag']}={MASK}")
                continue
            hide_next = is_flag and not found["value"]
        shown.append(masked_text(arg))
    return shown
