"""Names of secrets: which values a request hides, and which a log is searched for."""

from __future__ import annotations

import functools
import re
from enum import Enum

# Every pattern of this module reads a name as its words in lower case: `dbPassword`, `db-password`, `DB_PASSWORD`.
_BETWEEN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[.\-/]")
_CERTAIN = re.compile(
    r"(?:\A|_)(?:[a-z0-9]*(?:passw(?:or)?ds?|passwd|passphrase|(?:api|access)_?keys?"
    r"|(?:account|private|signing|encryption|fernet)_?key"
    r"|passcode|authkey|(?:secret|token)(?=_?\d*\Z|_(?:prod|production|dev|staging|test|qa|uat|key|value"
    r"|[a-z]{0,3}\d+[a-z]?)\Z))|authorization|bearer)"
    r"\d*(?=_|\Z)"
)
_CERTAIN_IF_SHORT = re.compile(
    r"(?:\A|_)(?:pwd|pw|jwt|sas|(?:require|store|key|ssh|db)pass|pass(?=_?\d*\Z|_(?:prod|production|dev|staging|test|qa|uat)\Z)"
    r"|(?:ssh|service|master)_?key)\d*(?=_|\Z)"
)
_WHOLE = re.compile(
    r"(?:\A|_)(?:connection_?string|webhook_?url|keyfile_?dict|auth_?header|(?:amz|goog)_?signature)(?=_|\Z)"
)
"""Names that end like one of something about a secret."""
_PARTS = re.compile(
    r"passw|passphrase|secret|token(?!iz)|credential|(?:\A|_)creds?(?=_|\Z)|private|bearer|fernet|keyfile|api_?key|access_?key|account_?key"
    r"|(?:\A|_)prox(?:y|ies)\Z|authorization|service_?account|session_?cookie|(?:\A|_)airflow_conn_"
)
_WORDS = re.compile(r"(?:\A|_)(?:auth|pass|dsn|pat|key|cookies?|proxy|proxies)(?=_|\Z)")
_ABOUT = re.compile(
    r"_(?:name|id|type|kind|count|size|length|len|file|path|dir|url|uri|mode|method|timeout|ttl|policy|prefix|suffix"
    r"|field|column|index|version|provider|source|manager|backend|store|scope|enabled|required|env|var|ref|header|label"
    r"|alias|format|algorithm|proxy|proxie|application_credential)s?\Z"
)
"""With one of these words, the value describes a secret: its location, or a count."""
_OTHER = re.compile(
    r"(?:\A|_)(?:pad|mask|eos|bos|cls|sep|unk|stop|start|end|special|next|prev|first|last|image|prompt|n"
    r"|placeholder|initializer|class|eot|per)_token\Z"
    r"|(?:\A|_)(?:first|second|last|next|render|forward|backward|train|low|high|band|multi|single|num|n)_pass\Z"
)
"""Words of models and programs: the tokens of a tokenizer, and the passes of a computation."""
_NONE = re.compile(
    r"\Akey\Z|\Aprimary_key\Z|(?:\A|_)(?:secret_?name|no_proxy)\Z"
    r"|(?:\A|_)(?:max|min|num|n|new|total|input|output|prompt|completion|cached|special)(?:_[a-z]+)?_tokens\Z"
    r"|(?:\A|_)(?:partition|sort|foreign|group|cache|object|row|index|join|merge|unique|public)_?key\Z"
)
"""Names of data and models."""

_BETWEEN_WORDS = re.compile(r"[ \t\0_\-./:,;<>\[\]|*${}()+~@=\\\"']+")
_ORDINARY_WORD = re.compile(
    r"[A-Za-z]?[a-z]{0,19}|[A-Z]{1,19}|[A-Z]?[a-z]{2,19}(?:[A-Z][a-z]{1,19}){1,3}|\d{1,15}(?:[eE]\d{0,3})?"
    r"|[A-Za-z]{1,3}\d{1,2}|(?i:oauth|https?|sha|md|rsa|aes|ed)\d{1,5}"
)
_NO_VOWEL = re.compile(r"[bcdfghjklmnpqrstvwxz]{6,}", re.IGNORECASE)
_LOCATION = re.compile(r"(?:~?/|\.{1,2}/|[A-Za-z][A-Za-z0-9+.\-]*://)[^?]*\Z")
_LONGEST = 200
"""Characters of a name that are read."""


class Kind(Enum):
    """Whether a name is that of a secret."""

    NONE = "none"
    POSSIBLE = "possible"
    """Other values have such names, too: `AUTH`, `private`, `sort_key`."""
    ABOUT = "about"
    """As a possible one, but often a location: `token_url`."""
    CERTAIN = "certain"


def kind_of(name: str) -> Kind:
    """Return whether a name of a variable, flag, field or argument is that of a secret."""
    return _kind_of(name[-_LONGEST:])


@functools.lru_cache(maxsize=4096)
def _kind_of(name: str) -> Kind:
    words = _BETWEEN.sub("_", name).lower()
    if _WHOLE.search(words):
        return Kind.CERTAIN
    if _NONE.search(words):
        return Kind.NONE
    is_about = bool(_ABOUT.search(words))
    is_certain = bool(_CERTAIN.search(words) or (_CERTAIN_IF_SHORT.search(words) and not is_about))
    if is_certain and not is_about and not _OTHER.search(words):
        return Kind.CERTAIN
    if is_certain or _PARTS.search(words):
        return Kind.ABOUT if is_about else Kind.POSSIBLE
    return Kind.POSSIBLE if _WORDS.search(words) and not is_about else Kind.NONE


def is_secret_name(name: str) -> bool:
    """Return whether a request must not show values with this name."""
    return kind_of(name) is not Kind.NONE


def is_ordinary(name: str, value: str) -> bool:
    """Return whether other lines of a log may have the value of this name, so that only the request hides it.

    These are words, numbers and paths, if the name need not be that of a secret: `AUTH=kerberos`, `image_key: image`,
    `token_file=/run/t`; but not `DB_PASSWORD=kerberos`.
    """
    kind = kind_of(name)
    if kind is Kind.CERTAIN:
        return False
    if kind is Kind.ABOUT and _LOCATION.match(value):
        return True
    words = _BETWEEN_WORDS.split(value)
    return all(_ORDINARY_WORD.fullmatch(word) and not _NO_VOWEL.fullmatch(word) for word in words)
