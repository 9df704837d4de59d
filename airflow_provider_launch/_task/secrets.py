"""Which texts are secrets in fields of a task and in errors, their forms, and Airflow's masks for them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.secrets import MASK, hidden_in_document, hidden_in_error

_SHORTEST = 5
"""Airflow does not mask shorter values, and logs a warning for them."""
_NO_SECRETS = frozenset({
    "false", "enabled", "disabled", "default", "basic", "bearer", "token", "digest", "apikey", "always", "never"
})  # fmt: skip

_MOST, _MOST_CHARS = 128, 32 * 1024
"""Limits for the masks of one app, because Airflow compiles all masks of a process again for each new one."""
_MOST_CAUSES = 20
"""A chain of causes may be a circle."""
_MOST_FORMS_CHARS = 8 * _MOST_CHARS
"""Values beyond this many characters are not searched for their forms, which are far more than can be masked."""
_LINE_END = re.compile(r"\r?\n|\\n")
"""Splits a value into lines, which are printed one by one; JSON writes the end of a line as two letters."""
_SCHEME = re.compile(r"\A(?:bearer|basic|token|digest|apikey|geniekey|splunk|ssws)[ \t]+", re.IGNORECASE)
"""The start of the value of a header; a program may print the rest alone."""
_DATA_OR_BEGIN = frozenset({"data", "variable_begin", "block_begin", "comment_begin"})
_CUT = "\0"
"""Stands for a template; a word, so that the next one is not taken for the value of a name."""
RANK_OF_FORM = 1
"""The rank of lines and other forms of a value."""
_MOST_OF_PART = 16
_MOST_ENDS = 50
"""Positions at which the end of a hidden part is searched."""
_VALUES = macros.Values("", "", "", "")

_registered = set[str]()
"""The values that this process has registered, of the one task of a worker; others were fetched."""


def is_fetched(hidden: str) -> bool:
    """Return whether Airflow has masked a text, or a part of it, because a template has fetched it."""
    for value in sorted(_registered, key=len, reverse=True):
        hidden = hidden.replace(value, "")
    return bool(hidden)


def hidden_in_options(value: Any) -> dict[str, int]:
    """Return the values of options, or of another part of a request, that the shown request hides."""
    return forms_of(hidden_in_document(value))


def hidden_in_arguments(value: Any) -> dict[str, int]:
    """Return the parts of a rendered field that look like secrets.

    These are values of arguments with such names, of an `env` and in command lines, and parts of texts.
    """
    return forms_of(hidden_in_document(value, by_name=True))


def register_written(fields: Iterable[Any], *, by_name: bool = True) -> list[str]:
    """Mask the secrets in fields of the DAG file, before those of a run, which may be any number; and return them.

    Args:
        fields: apps, or other data; templates are not rendered.
        by_name: as for `hidden_in_document`.
    """
    found: dict[str, bool] = {}
    for value in fields:
        roles = getattr(value, "roles", None)
        for part in [vars(role) for role in roles] if isinstance(roles, list) else [value]:
            with contextlib.suppress(Exception):  # an app that is not valid is refused later
                merge(found, hidden_in_document(_without_templates(part), by_name=by_name))
    # The app that is built of them has the forms with replaced macros.
    pieces = {piece: named for value, named in found.items() for piece in _without_marks(value)}
    return _whole(forms_of(pieces, has_macros=False))


def _whole(forms: dict[str, int]) -> list[str]:
    """Mask the values, and return them without the forms of others, such as the lines of a key."""
    return [value for value in register(forms) if forms[value] != RANK_OF_FORM]


def _without_marks(value: str) -> Iterator[str]:
    """Yield the written parts of a value, of which the rest is a template."""
    first, *others = value.split(_CUT)
    yield first
    # Behind a blank there may be another argument.
    yield from (re.split(r"\s", part, maxsplit=1)[0] for part in others)


def _without_templates(value: Any) -> Any:
    """Return plain data with a mark in place of each template, whose code such as `key='x'` is not a secret."""
    if isinstance(value, str):
        return _without_template(value) if "{" in value else value
    if isinstance(value, Mapping):
        return {name: _without_templates(each) for name, each in value.items()}
    return [_without_templates(each) for each in value] if isinstance(value, (list, tuple)) else value


def _without_template(text: str) -> str:
    from jinja2 import Environment, TemplateSyntaxError

    try:
        parts = [*Environment().lex(text)]  # noqa: S701 - nothing is rendered
    except TemplateSyntaxError:
        return text
    return "".join(part if kind == "data" else _CUT for _, kind, part in parts if kind in _DATA_OR_BEGIN)


def register_parts(value: Any) -> None:
    """Mask the secrets of a rendered field, some of each part first, so that no part pushes out those of another."""
    if isinstance(value, Mapping):
        parts: list[Any] = [{name: each} for name, each in value.items()]
    else:
        parts = [*value] if isinstance(value, (list, tuple)) else [value]
    register_some(map(hidden_in_arguments, parts[:_MOST]))
    register(hidden_in_arguments(value))


def register_some(parts: Iterable[Mapping[str, int]]) -> list[str]:
    """Mask some values of each part, and not more than the limit for one app; and return them."""
    found: dict[str, int] = {}
    for part in parts:
        found |= {value: part[value] for value in chosen(part)[0][:_MOST_OF_PART]}
    return _whole(found)


def register_error(error: BaseException) -> None:
    """Mask the secrets in the text of an error and its causes, such as the password of an address."""
    found: dict[str, bool] = {}
    each: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if each is None:
            break
        with contextlib.suppress(Exception):
            found |= hidden_in_error(str(each))
        each = each.__cause__ or each.__context__
    register(forms_of(found))


def merge(found: dict[str, bool], others: Mapping[str, bool]) -> None:
    """Add values; one is named if it is the whole value of a name in either."""
    for value, is_named in others.items():
        found[value] = is_named or found.get(value, False)


def forms_of(values: Iterable[str], *, has_macros: bool = True) -> dict[str, int]:
    """Return the values as a program may print them, without those too short or too common to be hidden.

    The number of each is its rank: 0 for the whole value of a secret-like name, 1 for its other forms, such as its
    lines, 2 for a part of a text. Only these can be many without an author's consent, because a run may choose texts.

    Args:
        values: the values; a mapping has whether each is the whole value of a name. Otherwise all are.
        has_macros: whether the launcher replaces macros in them. Otherwise the replaced form would only hide a part.
    """
    named = values if isinstance(values, Mapping) else {}
    found: dict[str, int] = {}
    size = 0
    # Short values first, because `chosen` leaves out the others. The values of an app may have any length, because a
    # program may have replaced the record from which they are read.
    for value in sorted(values, key=lambda each: (not named.get(each, True), len(each))):
        if size > _MOST_FORMS_CHARS:
            break
        is_named = named.get(value, True)
        text = value[:_MOST_FORMS_CHARS]
        printed = {text, _VALUES.substitute(text)} if has_macros else {text}
        forms = {form for form in _forms(printed) if _is_maskable(form)}
        size += len(value) + sum(len(form) for form in forms if form not in found)
        for form in forms:
            rank = int(form not in (value, _VALUES.substitute(value))) if is_named else 2
            found[form] = min(rank, found.get(form, rank))
    return found


def _is_maskable(text: str) -> bool:
    return len(text) >= _SHORTEST and text.strip().lower() not in _NO_SECRETS


def _forms(printed: set[str]) -> Iterator[str]:
    """Yield the forms in which a program or a message may print the texts."""
    # A value that was found in JSON, such as an argument of a function.
    printed = printed | {_unescaped(text) for text in printed}
    printed |= {line.strip() for text in printed for line in _LINE_END.split(text)}
    printed |= {_SCHEME.sub("", text) for text in printed}
    yield from printed
    for text in printed:
        # As written by `repr` and JSON.
        yield from {repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _unescaped(text: str) -> str:
    """Return the text that JSON writes like this; the same text if it is not a part of JSON."""
    if "\\" in text:
        with contextlib.suppress(ValueError):
            return str(json.loads(f'"{text}"'))
    return text


def register_in_json(value: Any) -> None:
    """Mask the secrets in plain data that travels as JSON also as JSON and the launcher write them.

    Otherwise `places_of` would not find them in the variables of an app.
    """
    from airflow_provider_launch.functions.arguments import written

    found = hidden_in_document(value, by_name=True)
    texts = [*_texts_of(value)]
    # Many texts rarely have a secret, and a search costs as much for a short one as for a long one.
    if hidden_spans("\n".join(texts)):
        merge(found, {text[start:end]: False for text in texts for start, end in hidden_spans(text)})
    if found:
        forms = forms_of(found, has_macros=False)
        for text, is_named in found.items():
            if _is_maskable(text):
                forms.setdefault(macros.escape(written(text)[1:-1]), 1 if is_named else 2)
        register(forms)


def _texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _texts_of(name)
            yield from _texts_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts_of(each)


def register(values: Iterable[str], warn: Callable[..., object] | None = None) -> list[str]:
    """Have Airflow mask the values in this process and its supervisor, and return those that it masks.

    Args:
        values: secrets of one app.
        warn: takes a warning and its arguments if there are too many values.
    """
    from airflow_provider_launch._airflow import mask_secret

    kept, left_out = chosen(values)
    _registered.update(value for value in kept if _masked(value) != MASK)
    for value in kept:
        mask_secret(value)
    if left_out and warn is not None:
        warn(
            "%d of %d secrets of the app are not masked in this log: the limits are %d secrets and %d characters in "
            "total; have the program read long secrets from files",
            left_out, left_out + len(kept), _MOST, _MOST_CHARS,
        )  # fmt: skip
    return kept


def chosen(values: Iterable[str]) -> tuple[list[str], int]:
    """Return the values of an app that are masked, and how many are left out.

    Those of the lowest rank come first, if `values` has ranks as in `forms_of`, and then the shortest.
    """
    ranks = values if isinstance(values, Mapping) else {}
    kept: list[str] = []
    size = 0
    ordered = sorted({*values}, key=lambda value: (ranks.get(value, 0), len(value), value))
    for value in ordered:
        if len(kept) < _MOST and size + len(value) <= _MOST_CHARS:
            kept.append(value)
            size += len(value)
    return kept, len(ordered) - len(kept)


def shown_request(info: AppDryRunInfo[Any]) -> str:
    """Return the text of a request, masked before it is formatted.

    Formatting changes quotes, backslashes and line ends, so masks would no longer match.
    """
    try:
        return str(AppDryRunInfo(_redacted(info.request, {}), info._fmt))  # noqa: SLF001 - of our own class
    except Exception as error:  # noqa: BLE001 - a request that cannot be masked must not end the task
        return f"(this request cannot be shown without secrets: {type(error).__name__})"


def _redacted(value: Any, known: dict[str, str]) -> Any:
    """Return a copy in which each text is masked; `known` caches texts, because replicas repeat them."""
    if isinstance(value, str):
        if type(value) is not str:
            return value  # a member of an enumeration
        if value not in known:
            known[value] = _masked(value)
        return known[value]
    if isinstance(value, dict):
        # Keep the type, such as Counter.
        masked = copy.copy(value)
        masked.clear()
        masked.update({_redacted(name, known): _redacted(each, known) for name, each in value.items()})
        return masked
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_redacted(each, known) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            item.name: _redacted(getattr(value, item.name), known) for item in dataclasses.fields(value) if item.init
        }
        return dataclasses.replace(value, **parts)
    return value


def _masked(text: str) -> str:
    from airflow_provider_launch._airflow import redact

    return str(redact(text)) if len(text) >= _SHORTEST else text


def hidden(text: str, values: Sequence[str], *, is_cut: bool = False) -> str:
    """Return the text with `***` for each of the values; those that overlap are hidden together.

    Args:
        text: may have several lines.
        values: the secrets.
        is_cut: whether lines may have been cut in the middle of a value: its start at the end of a line is hidden, too.
    """
    # One search for each value: that of one expression for all takes quadratic time.
    found = [span for value in values if value in text for span in _spans_of(value, text)]
    if is_cut:
        end = -1
        for line in text.split("\n"):
            end += 1 + len(line)
            found += [(end - length, end) for value in values if (length := length_of_start(line, value))]
    parts, done = [], 0
    for start, end in sorted(found):
        if start >= done:
            parts += [text[done:start], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def length_of_start(line: str, value: str) -> int:
    """Return with how many characters of a value a line ends; 0 if they may just as well be something else."""
    if value[:_SHORTEST] not in line[-len(value) :]:
        return 0
    for length in range(min(len(value) - 1, len(line)), _SHORTEST - 1, -1):
        start = value[:length]
        if line.endswith(start):
            # `token` is the first word of `token ghp_11A`, and a line of dashes is the start of a key.
            is_word = start.isalpha() and not value[length].isalnum() and 2 * length <= len(value)
            return 0 if is_word or len({*start}) == 1 else length
    return 0


def _spans_of(value: str, text: str) -> Iterator[tuple[int, int]]:
    at = text.find(value)
    while at >= 0:
        yield at, at + len(value)
        at = text.find(value, at + len(value))


def hidden_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of a text that Airflow's masker would hide."""
    from airflow_provider_launch._airflow import redact

    shown = str(redact(text))
    if shown == text:
        return []
    # The text between the masks shows where they are; adjacent masks count as one.
    first, *others = shown.split(MASK)
    if not text.startswith(first):
        return [(0, len(text))]
    *inner, last = others
    found, at = [], len(first)
    parts = [*filter(None, inner), last]
    for number, part in enumerate(parts, 1):
        begin = _end_of_hidden(text, at, part, is_last=number == len(parts))
        if begin <= at:
            return [(0, len(text))]
        found.append((at, begin))
        at = begin + len(part)
    return found


def _end_of_hidden(text: str, at: int, after: str, *, is_last: bool) -> int:
    """Return where a hidden part ends that begins at a position, -1 if unknown; a secret may contain the text after."""
    from airflow_provider_launch._airflow import redact

    end = len(text) - len(after) if is_last else text.find(after, at + 1)
    for _ in range(_MOST_ENDS):
        if end <= at or not text.startswith(after, end):
            return -1
        if not str(redact(text[at:end])).strip("*"):
            return end
        end = -1 if is_last else text.find(after, end + 1)
    return -1
