"""Detect and mask secrets in requests, errors and logs; the list of names is a superset of Airflow's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

MASK = "***"
FUNCTION_VARIABLES = "LAUNCH_FUNCTION_"
"""Prefix of the variables with a function and its arguments, which a request shows by their size only."""

# Whole words of a name, or parts of one, as in `DB_PASSWORD`, `dbPassword` and `db-password`.
_PARTS = (
    "passw", "passphrase", "secret", "token", "api_key", "access_key", "account_key", "private", "credential",
    "connection_string", "webhook_url", "keyfile", "service_account", "service_key", "authorization", "bearer",
    "auth_header", "signing_key", "encryption_key", "fernet", "session_cookie", "amz_signature", "goog_signature",
)  # fmt: skip
_WORDS = (
    "auth", "pwd", "pass", "requirepass", "storepass", "keypass", "sshpass", "dsn", "conn", "jwt", "sas", "pat", "key",
    "cookie", "proxy", "proxies",
)  # fmt: skip
_PART = re.compile("|".join(_PARTS).replace("_", r"[_.\-]?"), re.IGNORECASE)
_WORD = re.compile(rf"(^|[_.\-])({'|'.join(_WORDS)})($|[_.\-])", re.IGNORECASE)
# With one of these words the name is about a secret, but the value is not one: its location, or a count.
_HARMLESS = re.compile(r"[_.\-](name|id|type|count|size|file|path|mode|timeout)s?$", re.IGNORECASE)
# Every pattern takes linear time: it starts only where a word starts, and reads nothing twice.
_TOKEN = re.compile(r"\S+")
_IMAGE = re.compile(r"[\"'(]*(?P<user>[\w.\-]+):(?P<password>[^\s@/:]+)@(?!sha\d+:)[\w.\-]+(?::\d+)?/\S+\Z")
"""An image with registry credentials, as some engines accept it."""
_TOKEN_AS_USER = re.compile(
    r"(?![A-Za-z]{1,20}(?:[._\-][A-Za-z]{1,20}){0,4}[._\-]?\d{0,4}[:@])"
    r"(?=[^@/:]{0,100}\d)(?P<token>[^\s@/:\"'$]{12,})(?::|:x-oauth-basic)?@"
)
"""A token in place of a user name, which is shorter or consists of words, as a rule."""
_PORT = re.compile(r"\d{1,5}(?:[/?#,]|\Z)")
_NAME = re.compile(
    r"(?<![\w.\-])-{0,2}(?P<name>[A-Za-z_][\w.\-]*)(?P<quote>\\*[\"'])?[ \t]*(?P<sep>[=:])(?P<gap>[ \t]*)"
)
_FLAG_IN_TEXT = re.compile(r"(?<![\w.\-])--?(?P<name>[A-Za-z][\w.\-]*)(?:[ \t]|\\\r?\n)+(?!-)")
_FLAG_IN_LIST = re.compile(r"(?<![\w.\-])--?(?P<name>[A-Za-z][\w.\-]*)\\*[\"'][ \t]*,\s*(?=\\*[\"'](?!-))")
"""`["--password", "x"]` in JSON."""
_PAIR = re.compile(
    r"(?<![\w.\-])name(?:\\*[\"'])?[ \t]*:[ \t]*(?:\\*[\"'])?(?P<name>[A-Za-z_][\w.\-]*)(?:\\*[\"'])?,?\s*"
    r"(?:\\*[\"'])?value(?:\\*[\"'])?[ \t]*:[ \t]*",
    re.IGNORECASE,
)
"""`{"name": "PASSWORD", "value": "x"}` in JSON or YAML."""
_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?P<body>(?:(?:\\[nr]|\s)*(?:Proc-Type|DEK-Info|Version|Comment|Charset):[^\n\\]*)*(?:[A-Za-z0-9+/=]|\s|\\[nr])*)"
)
"""A private key; a script that only searches for one has no body after this line."""
_SHORTEST_KEY = 40
_RUN = re.compile(r"[A-Za-z0-9+/=]{16,}")
"""A line of a key."""
_HEADER = re.compile(r"(?:proxy-)?authorization|cookie|x-[\w.\-]+", re.IGNORECASE)
_INDENT = " \t-"
_VALUE = re.compile(
    r"""(?:(?:[bfru]{1,2}|\$)(?=["']))?(?:\\+"(?P<escaped>[^"\\]*)"""
    r"""|"(?P<double>[^"\\]*(?:\\[\s\S][^"\\]*)*)"""
    r"""|'(?P<single>[^']*)"""
    r"""|(?P<plain>(?:(?:bearer|basic|token|digest)[ \t]+)?[^\s"',;&|(){}<>\\]+))""",
    re.IGNORECASE,
)
"""A name with its value inside a text: shell, connection string, JSON, header."""
_SHORTEST = 5
"""Characters of a secret that is searched for elsewhere in an error."""
_MOST_REPEATED = 20
"""A text from a run may have any number of secrets, and each search takes time."""
_LARGEST_NUMBER = 3
"""Characters of the number of parts of a function."""
_REFERENCE = re.compile(r"\$(?:\w+|\{\w+\})?")
"""A shell variable, or a macro or parameter: its value is masked where it is set."""
_FLAG = re.compile(r"^(?P<flag>--?[A-Za-z][\w.\-]*)(?P<equals>=)?(?P<value>.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"^(?P<flag>[A-Za-z_]\w*)=(?P<value>.+)$", re.DOTALL)
_SHORT_FLAG = "-p"
_NO_PASSWORD = re.compile(r"[\d:.]*|[-./~$].*", re.DOTALL)
"""Values of `-p` that are not a password: a port, or a path."""
_NAMED_BY_ENGINES = frozenset({"options", "config"})
_OF_DATA = re.compile(
    r"tokeniz|secret[_\-]?name\Z|(?:max|min|num|n|new|input|output|prompt|completion)_?tokens\Z"
    r"|(?:partition|sort|primary|foreign|group|cache|object|row|index|join|merge|unique|public)[_\-]?key\Z",
    re.IGNORECASE,
)
"""Names of data and models."""
# Fields whose keys are chosen by users. An argument `config` may have any meaning, unlike the field of an engine.
_VARIABLES = frozenset({"env", "environment"})
_LABELS = frozenset({"labels", "annotations", "tags"})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[.\-]")
_ARGUMENT = re.compile(
    r"(?:\b|_)(?:password|passwd|passphrase|(?:require|store|key|ssh)?pass|pwd|pw|secret|token|credentials?|bearer|dsn"
    r"|authorization|auth_header"
    r"|jwt|sas|cookie|connection_?string|webhook_?url"
    r"|(?:api|access|secret|private|account|encryption|signing|service|ssh)_?key)(?:_?\d+)?\Z",
    re.IGNORECASE,
)
"""The last words of the name of an argument. Its other words describe the secret, or something else: `token_count`."""
_ORDINARY = re.compile(
    r"(?:\b|_)(?:(?:pad|mask|eos|bos|cls|sep|unk|stop|start|end|special|next|prev|first|last|image|prompt|n)_token"
    r"|(?:first|second|last|next|render|forward|backward|train|low|high|band|multi|single|num|n)_pass)\Z",
    re.IGNORECASE,
)
"""Words of models and programs: the tokens of a tokenizer, and the passes of a computation."""
_CERTAIN = re.compile(
    r"passw(?:or)?d|passphrase|secret|credential|(?:api|access|account|private|signing|encryption)[_\-]?key"
    r"|signature|(?:\b|_)(?:pwd|jwt|token|bearer)_",
    re.IGNORECASE,
)
_ABOUT = re.compile(
    r"_(?:name|id|type|kind|count|size|length|len|file|path|dir|url|uri|mode|method|timeout|ttl|policy|prefix|suffix"
    r"|field|column|index|version|provider|source|manager|backend|store|scope|enabled|required)s?\Z",
    re.IGNORECASE,
)
"""With one of these words, the value may be about a secret."""
_BETWEEN_WORDS = re.compile(r"[ \t_\-./:,;<>\[\]|*${}()+~@=\\\"']+")
_ORDINARY_WORD = re.compile(
    r"[A-Za-z]?[a-z]{0,19}|[A-Z]{1,20}|(?:[A-Z]?[a-z]{2,20}){2,4}|\d{1,10}|[A-Za-z]{1,3}\d{1,2}|[a-z]{4,5}\d"
)
IsSecret = Callable[[str], bool]
Span = tuple[int, int, str]
"""Start and end of a secret in a text, and its name; empty if its form says that it is one."""
Keep = Callable[[str, bool], object]
"""Takes a hidden value, and whether it is the whole value of a secret-looking name."""


def is_secret_name(name: str) -> bool:
    """Return whether a request must not show values with this name."""
    if not name.isupper() and _OF_DATA.search(name):
        return False
    return bool(_PART.search(name) or (_WORD.search(name) and not _HARMLESS.search(name)))


def is_secret_argument(name: str) -> bool:
    """Return whether an argument with this name must be masked: `db_pass`, but neither `tokenizer` nor `max_tokens`."""
    if name.isupper():
        return is_secret_name(name)  # as a variable
    words = _CAMEL.sub("_", name)
    return bool(_ARGUMENT.search(words)) and not _ORDINARY.search(words)


def _is_secret_in_text(name: str) -> bool:
    """Return whether the value after a name in a configuration is hidden."""
    return is_secret_name(name) and name.strip("\"'") != "key"


def _is_ordinary(name: str, value: str) -> bool:
    """Return whether the value is hidden only where it has this name, because lines of a log may have it, too.

    `AUTH=kerberos`, `conn: postgres_default`, `MAX_TOKENS=4096` and `token_file=/run/t` are words, numbers and paths,
    and their names do not say for sure that they are secrets, unlike `DB_PASSWORD=kerberos`.
    """
    if _REFERENCE.fullmatch(value):
        return True
    words = _CAMEL.sub("_", name)
    is_certain = not name or _ARGUMENT.search(words) or (_CERTAIN.search(words) and not _ABOUT.search(words))
    if is_certain and not _ORDINARY.search(words):
        return False
    return all(map(_ORDINARY_WORD.fullmatch, _BETWEEN_WORDS.split(value)))


def masked_text(text: str) -> str:
    """Return the text with secrets masked by their form: `postgres://user:***@host`, `password=***`."""
    return _masked(text, _ignored)


def masked_error(text: str) -> str:
    """Return the text of an error with secrets masked; `'token': not a text` contains none."""
    hidden = hidden_in_error(text)
    text = _masked(text, _ignored, is_prose=True)
    # An address is often followed by the path that was tried.
    for value in [*hidden][:_MOST_REPEATED]:
        text = text.replace(value, MASK) if len(value) >= _SHORTEST else text
    return text


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `env` with `***` for values of secret-looking names, and for secrets inside other values.

    A function and its arguments are shown as their size, because they may have a megabyte.
    """
    return {name: _masked_variable(name, value) for name, value in env.items()}


def masked_args(args: Sequence[str]) -> list[str]:
    """Return the arguments with `***` for `--password=x`, for the value after `--password` or `-p`, and in texts."""
    return _masked_args(args, _ignored)


def masked_document(value: Any, name: str = "", is_secret: IsSecret | None = None) -> Any:
    """Return a masked copy of a part of a native request, plain JSON in the field `name`.

    Args:
        value: the part.
        name: its field.
        is_secret: decides about the names of other data, such as arguments. None: an engine has chosen the names.
    """
    return _masked_part(value, name, is_secret, _ignored)


# The next functions return what those above hide, without ordinary words, because a log is searched for each value.
# Each has whether it is the whole value of a secret-looking name. Otherwise it is a part of a text.


def hidden_in_text(text: str) -> dict[str, bool]:
    """Return the parts that `masked_text` hides."""
    found: dict[str, bool] = {}
    _masked(text, _into(found))
    return found


def hidden_in_error(text: str) -> dict[str, bool]:
    """Return the parts that `masked_error` hides."""
    found: dict[str, bool] = {}
    _masked(text, _into(found), is_prose=True)
    return found


def hidden_in_env(env: Mapping[str, str]) -> dict[str, bool]:
    """Return the values, or parts of them, that `masked_env` hides; also parts of a function."""
    found: dict[str, bool] = {}
    keep = _into(found)
    for name, value in env.items():
        if not is_secret_name(name) or not _kept(name, value, keep):
            _masked(value, keep)
    return found


def hidden_in_args(args: Sequence[str]) -> dict[str, bool]:
    """Return the arguments, or parts of them, that `masked_args` hides."""
    found: dict[str, bool] = {}
    _masked_args(args, _into(found))
    return found


def hidden_in_document(value: Any, name: str = "", is_secret: IsSecret | None = None) -> dict[str, bool]:
    """Return the parts that `masked_document` hides."""
    found: dict[str, bool] = {}
    _masked_part(value, name, is_secret, _into(found))
    return found


def _ignored(_value: str, _is_named: bool) -> None:
    pass


def _into(found: dict[str, bool]) -> Keep:
    def keep(value: str, is_named: bool) -> None:
        if value:
            found[value] = is_named or found.get(value, False)

    return keep


def _kept(name: str, value: str, keep: Keep) -> bool:
    """Keep the value of a secret-looking name, unless it is ordinary; return whether it was kept."""
    is_kept = not _is_ordinary(name, value)
    if is_kept:
        keep(value, True)
    return is_kept


def _masked(text: str, keep: Keep, *, is_prose: bool = False) -> str:
    spans = sorted(_spans(text, is_prose=is_prose))
    if not spans:
        return text
    if keep is not _ignored:
        # Those of an ordinary value may be around one that is not.
        for start, end in _merged(span for span in spans if not _is_ordinary(span[2], text[span[0] : span[1]])):
            keep(text[start:end], False)
    parts, done = [], 0
    for start, end in _merged(spans):
        parts += [text[done:start], MASK]
        done = end
    return "".join([*parts, text[done:]])


def _masked_variable(name: str, value: str) -> str:
    if name.startswith(FUNCTION_VARIABLES):
        return f"(function and arguments, {len(value)} characters)" if len(value) > _LARGEST_NUMBER else value
    return MASK if value and is_secret_name(name) else _masked(value, _ignored)


def _masked_args(args: Sequence[str], keep: Keep) -> list[str]:
    shown: list[str] = []
    for arg, hidden, name in _hidden_parts(args):
        if hidden is None:
            shown.append(_masked(arg, keep))
        else:
            if not _kept(name, arg[hidden:], keep):
                _masked(arg[hidden:], keep)
            shown.append(f"{arg[:hidden]}{MASK}")
    return shown


def _masked_part(value: Any, name: str, is_secret: IsSecret | None, keep: Keep) -> Any:
    """Return the part with masks; `keep` takes each value that is hidden."""
    if isinstance(value, str):
        return _masked(value, keep)
    if isinstance(value, Mapping):
        return _masked_mapping(value, name, is_secret, keep)
    if isinstance(value, (list, tuple)):
        texts = iter(_masked_args([each for each in value if isinstance(each, str)], keep))
        return [next(texts) if isinstance(each, str) else _masked_part(each, name, is_secret, keep) for each in value]
    if keep is not _ignored and not isinstance(value, (bool, int, float, type(None))):
        # Airflow stores other objects, such as a dataclass or a set, as this text.
        with contextlib.suppress(Exception):
            _masked(str(value), keep)
    return value


def _masked_mapping(value: Mapping[Any, Any], name: str, is_secret: IsSecret | None, keep: Keep) -> dict[Any, Any]:
    is_named = is_secret or _never
    if name.lower() in _VARIABLES | (_NAMED_BY_ENGINES if is_secret is None else frozenset()):
        is_named = is_secret_name
    elif name.lower() in _LABELS:
        # Otherwise a label `key: train` would hide this word in the log.
        is_named = is_secret_argument
    # `{name: PASSWORD, value: x}` is the form of variables in a pod.
    own = value.get("name", value.get("Name"))
    is_pair = isinstance(own, str) and is_secret_name(own)
    shown: dict[Any, Any] = {}
    for key, each in value.items():
        if isinstance(key, str):
            _masked(key, keep)
        texts = each if isinstance(each, (list, tuple)) else [each]
        name_of_value = str(own if is_pair and key in ("value", "Value") else key)
        is_hidden = name_of_value is own or is_named(name_of_value)
        if is_hidden and texts and all(isinstance(text, str) for text in texts):
            for text in texts:
                if not _kept(name_of_value, text, keep):
                    _masked(text, keep)
            shown[key] = each and MASK
        else:
            shown[key] = _masked_part(each, str(key), is_secret, keep)
    return shown


def _never(_name: str) -> bool:
    return False


def _hidden_parts(args: Sequence[str]) -> Iterator[tuple[str, int | None, str]]:
    """Return each argument with the position from which it is masked, and the name of this value.

    The position is None if only secrets inside of the argument are masked.
    """
    hide_next = ""
    before = ""
    for arg in args:
        found = _FLAG.match(arg) or _ASSIGNED.match(arg)
        is_flag = bool(found) and arg.startswith("-")
        if hide_next and not is_flag:
            yield arg, 0, hide_next
            hide_next = ""
        elif before == _SHORT_FLAG and not _NO_PASSWORD.fullmatch(arg):
            yield arg, 0, ""
        else:
            hide_next = ""
            hidden = None
            name = found["flag"].lstrip("-") if found else ""
            if found and is_secret_name(name):
                # Text after a quoted value belongs to a shell.
                if found["value"] and (found["equals"] if is_flag else found["value"][0] not in "\"'"):
                    hidden = found.start("value")
                if is_flag and not found["value"]:
                    hide_next = name
            yield arg, hidden, name
        before = arg


def _spans(text: str, *, is_prose: bool) -> list[Span]:
    """Return the spans of secrets in a text.

    In prose a colon ends the name of what the sentence is about, a flag is the subject of a sentence, and `key=value`
    is a form.
    """
    found: list[Span] = []
    if any(mark in text for mark in "=:"):
        found += [*_url_spans(text), *_inline_spans(text, is_prose=is_prose)]
        found += _values_after(_PAIR, text, _is_secret_in_text)
    if "-" in text and not is_prose:
        found += [*_values_after(_FLAG_IN_TEXT, text, is_secret_name), *_key_spans(text)]
        found += _values_after(_FLAG_IN_LIST, text, _is_secret_in_text)
    return found


def _merged(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """Return spans, which are in order, without overlaps."""
    kept: list[tuple[int, int]] = []
    for start, end, _ in spans:
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
        else:
            kept[-1] = (kept[-1][0], max(end, kept[-1][1]))
    return kept


def _url_spans(text: str) -> Iterator[Span]:
    """Return the spans of passwords in URLs. The user name is shown; the text between it and the host is not."""
    if "@" not in text:
        return
    for token in _TOKEN.finditer(text):
        word = token[0]  # each access creates a copy
        if image := _IMAGE.match(word):
            yield token.start() + image.start("password"), token.start() + image.end("password"), ""
        # There is one URL between two markers. A path keeps one slash of an address.
        marker = "://" if "://" in word else ":/"
        begin = word.find(marker)
        while begin >= 0:
            after = word.find(marker, begin + len(marker))
            address = word[begin + len(marker) : after if after >= 0 else None]
            is_web = word[max(begin - 5, 0) : begin].lower().endswith(("http", "https"))
            user = _TOKEN_AS_USER.match(address) if is_web else None
            if begin > 0 and (span := user.span("token") if user else _password_in(address)):
                offset = token.start() + begin + len(marker)
                yield offset + span[0], offset + span[1], ""
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


def _inline_spans(text: str, *, is_prose: bool) -> Iterator[Span]:
    at = 0
    while found := _NAME.search(text, at):
        at = found.end()
        if is_prose and (found["sep"] == ":" or found["name"] == "key"):
            continue
        # The signature of an address that Azure has signed.
        is_signature = found["name"] == "sig" and text[found.start() - 1 : found.start()] in ("?", "&")
        if not (is_signature or is_secret_name(found["name"])) or not _is_assignment(text, found):
            continue
        value = _VALUE.match(text, at)
        if value is None:
            continue
        at = value.end()
        kind = str(value.lastgroup)
        if value[kind] and not _REFERENCE.fullmatch(value[kind]):
            yield *value.span(kind), "" if is_signature else found["name"]


def _values_after(pattern: re.Pattern[str], text: str, is_secret: IsSecret) -> Iterator[Span]:
    """Return the spans of values after flags in a command, `login --password x`, or after `name: PASSWORD, value:`."""
    at = 0
    while found := pattern.search(text, at):
        at = found.end()
        value = _VALUE.match(text, at) if is_secret(found["name"]) else None
        if value is not None:
            at, kind = value.end(), str(value.lastgroup)
            # In `option("--token", "token")` the second text is a name, too.
            is_name = value[kind] == found["name"]
            if value[kind] and not is_name and not _REFERENCE.fullmatch(value[kind]):
                yield *value.span(kind), found["name"]


def _key_spans(text: str) -> Iterator[Span]:
    """Yield the spans of private keys in the PEM format, without the lines around them."""
    at = 0
    while found := _KEY.search(text, at):
        start, end = found.span("body")
        # In whatever form its lines are written. A script that only searches for a key has none.
        mark = text.find("-----", start)
        if text.startswith("-----END", mark) and sum(map(len, _RUN.findall(text, start, mark))) >= _SHORTEST_KEY:
            end = mark
        at = end
        if len(text[start:end].strip()) >= _SHORTEST_KEY:
            yield start, end, ""


def _is_assignment(text: str, found: re.Match[str]) -> bool:
    """Return whether the colon separates name and value, unlike in a sentence such as `the token: expired`."""
    if found["sep"] == "=" or found["quote"]:
        return True
    begin = found.start()
    before = text[begin - 1] if begin else "\n"
    if not found["gap"]:
        return before in "\n\"'" and bool(_HEADER.fullmatch(found["name"]))
    if before in "\n\"'{,":
        return True
    # In YAML a line may be indented, and begin with the mark of an item.
    at = begin - 1
    while at >= 0 and text[at] in _INDENT:
        at -= 1
    return _is_secret_in_text(found["name"]) and (at < 0 or text[at] == "\n")
