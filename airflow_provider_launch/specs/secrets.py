"""Detect and mask secrets in requests, errors and logs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_launch.specs.secret_names import Kind, is_ordinary, is_secret_name, kind_of
from airflow_provider_launch.specs.secret_values import DEFAULT, Position, values_in_text

MASK = "***"
FUNCTION_VARIABLES = "LAUNCH_FUNCTION_"
"""Prefix of the variables with a function and its arguments, which a request shows by their size only."""

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
    r"(?<![\w.\-])(?:(?<=\])\.)?-{0,2}(?P<name>[A-Za-z_][\w.\-]*)(?P<quote>\\*[\"'])?\]?[ \t]*(?P<sep>=(?!=)|:)"
    r"(?P<gap>[ \t]*)"
)
_FLAG_IN_TEXT = re.compile(r"(?<![\w.\-])--?(?P<name>[A-Za-z][\w.\-]*)(?:[ \t]|\\\r?\n)+(?!-)")
_FLAG_IN_LIST = re.compile(r"(?<![\w.\-])--?(?P<name>[A-Za-z][\w.\-]*)\\*[\"'][ \t]*,\s*(?=\\*[\"'](?!-))")
"""`["--password", "x"]` in JSON."""
_PAIR = re.compile(
    r"(?<![\w.\-])(?:name|key)(?:\\*[\"'])?[ \t]*:[ \t]*(?:\\*[\"'])?(?P<name>[A-Za-z_][\w.\-]*)(?:\\*[\"'])?,?\s*"
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
_NAMES_IN_QUERIES = {"sig": "", "key": "auth"}
"""Names in the query of an address: the signature of Azure, which is always a secret, and a name like that of a key."""
_NOTHING = frozenset({"null", "none", "true", "false", "~"})
_HEADER = re.compile(r"(?:proxy-)?authorization|cookie|x-[\w.\-]+", re.IGNORECASE)
_INDENT = " \t-"
_ESCAPES = "nrt"
"""Letters after a backslash that end a line."""
_SHORTEST = 5
"""Characters of a secret that is searched for elsewhere in an error."""
_MOST_REPEATED = 20
"""A text from a run may have any number of secrets, and each search takes time."""
_LARGEST_NUMBER = 3
"""Characters of the number of parts of a function."""
_REFERENCE = re.compile(r"\$(?:\w+|\{\w+\})?")
"""A shell variable, or a macro or parameter: its value is masked where it is set."""
_FLAG = re.compile(r"^(?P<flag>--?[A-Za-z][\w.\-]*(?:\[\w*\][\w.\-]*)*)(?P<equals>=)?(?P<value>.*)$", re.DOTALL)
_ASSIGNED = re.compile(r"^(?P<flag>[A-Za-z_+][\w.\-+]*(?:\[\w*\][\w.\-+]*)*)=(?P<value>.+)$", re.DOTALL)
_NO_VALUE = re.compile(r"(?:ask|with|use|enable|prompt|show)[_\-]")
"""Flags without a value in most programs, such as `--use-auth-token`."""
_SWITCH = re.compile(r"(?:no|without|skip|disable)[_\-]|.*[_\-](?:stdin|prompt)\Z")
_LIKE_A_TOKEN = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_]{16,}(?:[.\-][A-Za-z0-9_.\-]*)?={0,2}")
"""A value of a flag that is a switch in other programs: `--use_auth_token hf_x1`."""
_HEADER_FLAG = re.compile(r"(?:-\w{0,9}H|--header)[ =]{0,2}[\"']?\Z")
_HEADER_IN_LIST = re.compile(r"(?P<name>[A-Za-z][\w.\-]*):[ \t]*(?P<value>.+)\Z", re.DOTALL)
_SHORT_FLAG = "-p"
_NAME_OF_SHORT_FLAG = "auth"
"""The flag has many meanings, as this name has."""
_NO_PASSWORD = re.compile(r"[\d:.]*|[-./~$].*", re.DOTALL)
"""Values of `-p` that are not a password: a port, or a path."""
_NAMED_BY_ENGINES = frozenset({"options", "config"})
# Fields whose keys are chosen by users. An argument `config` may have any meaning, unlike the field of an engine.
_NAMED_BY_USERS = frozenset({"env", "environment", "labels", "annotations", "tags"})
Span = tuple[int, int, str]
"""Start and end of a secret in a text, and its name; empty for a form that only secrets have."""
Keep = Callable[[str, bool], object]
"""Takes a hidden value, and whether it is the whole value of a secret-looking name."""


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


def masked_document(value: Any, name: str = "", *, by_name: bool = False) -> Any:
    """Return a masked copy of plain JSON.

    Args:
        value: a part of a native request, or other data.
        name: its field.
        by_name: whether each name decides. Otherwise only those of variables, labels and options do, because an engine
            has chosen the names of fields.
    """
    return _masked_part(value, name, by_name, _ignored)


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
        _keep_named(name if is_secret_name(name) else None, value, keep)
    return found


def hidden_in_args(args: Sequence[str]) -> dict[str, bool]:
    """Return the arguments, or parts of them, that `masked_args` hides."""
    found: dict[str, bool] = {}
    _masked_args(args, _into(found))
    return found


def hidden_in_document(value: Any, name: str = "", *, by_name: bool = False) -> dict[str, bool]:
    """Return the parts that `masked_document` hides."""
    found: dict[str, bool] = {}
    _masked_part(value, name, by_name, _into(found))
    return found


def _ignored(_value: str, _is_named: bool) -> None:
    pass


def _into(found: dict[str, bool]) -> Keep:
    def keep(value: str, is_named: bool) -> None:
        if value:
            found[value] = is_named or found.get(value, False)

    return keep


def _keep_named(name: str | None, value: str, keep: Keep) -> None:
    """Keep a value with its name, None for one that is shown, and the parts that would be hidden without the name."""
    if name is not None and not is_ordinary(name, value):
        keep(value, True)
        # The items of a list in JSON.
        if value.startswith("["):
            for start, end in values_in_text(value, 0, 0, Position.FLOW, is_json=True):
                if not is_ordinary(name, value[start:end]):
                    keep(value[start:end], True)
        # Several keys, such as an old and a new one.
        elif "," in value:
            for part in value.split(","):
                if not is_ordinary(_NAME_OF_SHORT_FLAG, part):
                    keep(part, False)
    # A program may print a part of the value, such as the password of an address.
    _masked(value, keep)


def _masked(text: str, keep: Keep, *, is_prose: bool = False) -> str:
    spans = sorted(_spans(text, is_prose=is_prose))
    if not spans:
        return text
    if keep is not _ignored:
        # An ordinary value may be around one that is not.
        searched = [each for each in spans if not (each[2] and is_ordinary(each[2], text[each[0] : each[1]]))]
        whole = _merged(searched)
        starts = {start for start, _ in whole}
        # A part at the start of a whole value would leave its rest in the log.
        for start, end in [*whole, *((start, end) for start, end, _ in searched if start not in starts)]:
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
            _keep_named(name, arg[hidden:], keep)
            shown.append(f"{arg[:hidden]}{MASK}")
    return shown


def _masked_part(value: Any, name: str, by_name: bool, keep: Keep) -> Any:
    """Return the part with masks; `keep` takes each value that is hidden."""
    if isinstance(value, str):
        return _masked(value, keep)
    if isinstance(value, Mapping):
        return _masked_mapping(value, name, by_name, keep)
    if isinstance(value, (list, tuple)):
        texts = iter(_masked_args([each for each in value if isinstance(each, str)], keep))
        return [next(texts) if isinstance(each, str) else _masked_part(each, name, by_name, keep) for each in value]
    if keep is not _ignored and not isinstance(value, (bool, int, float, type(None))):
        # Airflow stores other objects, such as a dataclass or a set, as this text.
        with contextlib.suppress(Exception):
            _masked(str(value), keep)
    return value


def _masked_mapping(value: Mapping[Any, Any], name: str, by_name: bool, keep: Keep) -> dict[Any, Any]:
    is_field_of_names = name.lower() in (_NAMED_BY_USERS if by_name else _NAMED_BY_USERS | _NAMED_BY_ENGINES)
    # `{name: PASSWORD, value: x}` is the form of variables in a pod.
    own = next((value[key] for key in ("name", "Name", "key", "Key") if key in value), None)
    shown: dict[Any, Any] = {}
    for key, each in value.items():
        if isinstance(key, str):
            _masked(key, keep)
        is_pair = isinstance(own, str) and key in ("value", "Value")
        name_of_value = str(own if is_pair else key)
        if (is_pair or by_name or is_field_of_names) and is_secret_name(name_of_value):
            shown[key] = _masked_below(each, name_of_value, by_name, keep)
        else:
            shown[key] = _masked_part(each, str(key), by_name, keep)
    return shown


def _masked_below(value: Any, name: str, by_name: bool, keep: Keep) -> Any:
    """Return a value with this name, of a secret, with all its texts hidden."""
    if isinstance(value, str):
        _keep_named(name, value, keep)
        return value and MASK
    if isinstance(value, (list, tuple)):
        # One item may be the flag of the next.
        _masked_args([each for each in value if isinstance(each, str)], keep)
        shown = [_masked_below(each, name, by_name, keep) for each in value]
        return MASK if shown and all(each == MASK for each in shown) else shown
    if not isinstance(value, Mapping):
        return _masked_part(value, name, by_name, keep)
    found: dict[Any, Any] = {}
    for key, each in value.items():
        kind = kind_of(f"{name}_{key}")
        is_certain = kind_of(name) is Kind.CERTAIN
        if kind is Kind.NONE and not is_certain:
            found[key] = _masked_part(each, str(key), by_name, keep)
        else:
            # `token: {file: /run/t}` is as `token_file: /run/t`.
            is_about = kind in (Kind.ABOUT, Kind.NONE)
            own = str(key) if kind_of(str(key)) is Kind.CERTAIN else name
            found[key] = _masked_below(each, "token_file" if is_about else own, by_name, keep)
    return found


def _hidden_parts(args: Sequence[str]) -> Iterator[tuple[str, int | None, str]]:
    """Return each argument with the position from which it is masked, and the name of this value.

    The position is None if only secrets inside of the argument are masked.
    """
    hide_next = ""
    before = ""
    for arg in args:
        found = _FLAG.match(arg) or _ASSIGNED.match(arg)
        is_flag = bool(found) and arg.startswith("-")
        if hide_next and not is_flag and _takes(hide_next, arg):
            yield arg, 0, hide_next
            hide_next = ""
        elif before in ("-H", "--header") and (header := _other_header(arg)):
            yield arg, header.start("value"), header["name"]
        elif before == _SHORT_FLAG and not _NO_PASSWORD.fullmatch(arg):
            yield arg, 0, _NAME_OF_SHORT_FLAG
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


def _takes(flag: str, value: str) -> bool:
    """Return whether the next text is the value of a flag, unlike that after `--password-stdin`."""
    if _SWITCH.match(flag):
        return False
    return not _NO_VALUE.match(flag) or bool(_LIKE_A_TOKEN.fullmatch(value))


def _other_header(text: str) -> re.Match[str] | None:
    """Return a header with a secret whose name is not one of those that are headers everywhere."""
    found = _HEADER_IN_LIST.match(text)
    return found if found and is_secret_name(found["name"]) and not _HEADER.fullmatch(found["name"]) else None


def _spans(text: str, *, is_prose: bool) -> list[Span]:
    """Return the spans of secrets in a text.

    In prose a colon ends the name of what the sentence is about, a flag is the subject of a sentence, and `key=value`
    is a form.
    """
    found: list[Span] = []
    if any(mark in text for mark in "=:"):
        found += [*_url_spans(text), *_inline_spans(text, is_prose=is_prose), *_values_after(_PAIR, text)]
    if "${" in text:
        defaults = [each for each in DEFAULT.finditer(text) if is_secret_name(each["name"])]
        found += [(*each.span("value"), each["name"]) for each in defaults]
    if "-" in text and not is_prose:
        found += [*_values_after(_FLAG_IN_TEXT, text), *_values_after(_FLAG_IN_LIST, text), *_key_spans(text)]
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
    if colon < 0 or "/" in address[:colon]:
        return None
    start = colon + 1
    slash = address.find("/", start)
    end = address.rfind("@", start, slash if slash >= 0 else None)
    # Some users have the form of a mail address. Otherwise the host is before the colon.
    if end < 0 and "@" not in address[:colon] and not _PORT.match(address, start):
        # A password with slashes; a quote ends the URL.
        quote = min((at for mark in "\"'" if (at := address.find(mark, start)) >= 0), default=len(address))
        end = address.rfind("@", start, quote)
    if address.startswith("sha256:", end + 1):
        return None
    return (start, end) if end > start else None


def _inline_spans(text: str, *, is_prose: bool) -> Iterator[Span]:
    at = 0
    while found := _NAME.search(text, at):
        at = found.end()
        name, begin = found["name"], found.start()
        before = text[begin - 1 : begin]
        # `"$TOKEN" = "x"` compares.
        if (is_prose and found["sep"] == ":") or before == "$" or text.startswith("${", begin - 2):
            continue
        if found["sep"] == "=" and before in ("?", "&"):
            name = _NAMES_IN_QUERIES.get(name, name)
        elif before == "\\" and name[0] in _ESCAPES:
            name = name[1:]
        if name and not is_secret_name(name):
            continue
        position = _position(text, found)
        if position is None:
            continue
        for start, end in values_in_text(text, begin, found.end(), position, is_json=bool(found["quote"])):
            # A value in quotes may have names of its own.
            at = max(at, start if text[start - 1] in "\"'" else end)
            value = text[start:end]
            # In `token=token` and `a.token = b.token` of code the value has the same name.
            if not _is_nothing(text, start, end) and value.rpartition(".")[2] != name.rpartition(".")[2]:
                yield start, end, name


def _is_nothing(text: str, start: int, end: int) -> bool:
    if start == end or text[start:end].lower() in _NOTHING:
        return True
    # A shell replaces nothing in single quotes.
    return text[start - 1 : start] != "'" and bool(_REFERENCE.fullmatch(text, start, end))


def _values_after(pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    """Return the spans of values after flags in a command, `login --password x`, or after `name: PASSWORD, value:`."""
    at = 0
    while found := pattern.search(text, at):
        at = found.end()
        name = found["name"]
        if not is_secret_name(name):
            continue
        is_yaml = pattern is _PAIR and "\n" in found[0]
        position = Position.LINE if is_yaml else Position.FLOW
        for start, end in values_in_text(text, found.start(), at, position, is_json=False):
            if pattern is not _PAIR and not _takes(name, text[start:end]):
                break
            at = end
            # In `option("--token", "token")` the second text is a name, too.
            if text[start:end] != name and not _is_nothing(text, start, end):
                yield start, end, name


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


def _position(text: str, found: re.Match[str]) -> Position | None:
    """Return where an assignment is; None for the colon of a sentence, such as `the token: expired`."""
    if found["sep"] == "=":
        return Position.SHELL
    before = text[found.start() - 1] if found.start() else "\n"
    if not found["quote"]:
        if _HEADER.fullmatch(found["name"]) and before in "\n\"'":
            return Position.HEADER
        if _HEADER_FLAG.search(text, max(found.start() - 12, 0), found.start()):
            return Position.HEADER
        if not found["gap"] and text[found.end() : found.end() + 1] not in ("", "\n", "\r"):
            return None
    return _position_of_field(text, found, before)


def _position_of_field(text: str, found: re.Match[str], before: str) -> Position | None:
    begin = found.start()
    # In YAML a line may be indented, and begin with the mark of an item.
    at = begin - 1
    while at >= 0 and text[at] in _INDENT:
        at -= 1
    if at < 0 or text[at] in "\n\0":
        return Position.LINE
    if text[at] in _ESCAPES and text[at - 1] == "\\" and at < begin - 1:
        return Position.QUOTED_LINE
    if found["quote"]:
        return Position.FLOW
    if (before == "\\" and found["name"][0] in _ESCAPES) or (at < begin - 1 and text[at] in "\"'"):
        return Position.QUOTED_LINE
    return Position.FLOW if before in "\"'{," else None
