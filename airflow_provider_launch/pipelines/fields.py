"""Types of the fields of a file, and one translator from errors of pydantic to problems with their lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from airflow_provider_launch.pipelines.problems import Place, Problem, closest
from airflow_provider_launch.specs.secrets import masked_document
from airflow_provider_launch.specs.type_check import MOST_PROBLEMS, shown

if TYPE_CHECKING:
    from airflow_provider_launch.pipelines.document import Document, KeyPath

_NOT_TEXT = ("string_type", "dataclass_type")
"""Errors of pydantic for a value that must be text, or text that stands for a mapping."""
_SCALARS = (bool, int, float, date)
"""Types that YAML gives to text without quotes."""
T = TypeVar("T")
Reason = tuple[str, tuple[int | str, ...]]
Inner = Callable[["Rule", Hashable], Any]


def as_list(value: Any) -> Any:
    """Return a list; anything else becomes the only item."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _shown(value: Any) -> str:
    """Return a value for a problem, which all users of Airflow see: without secrets, and not long."""
    return shown(masked_document(value, by_name=True))


def _with_text_keys(value: Any) -> Any:
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else value


# The description of a type completes "must be ..."; fields whose type has none, nor a Key, are not read from a file.
Text = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) in (int, float) else value),
    Field(description="text"),
]
Named = Annotated[dict[str, Any], BeforeValidator(_with_text_keys), Field(description="a mapping")]
Flag = Annotated[bool, Field(strict=True, description="true or false")]
Count = Annotated[int, Field(strict=True, ge=1, description="a whole number of at least 1")]
Seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False, description="a number of at least 0")]
Other = Annotated[Any, Field(description="a value")]


@dataclasses.dataclass(frozen=True)
class Key:
    """How a field is written in a file, in addition to its type; alone it marks a field that the caller reads."""

    also: tuple[str, ...] = ()
    """Other spellings of its name."""
    cure: str = ""
    """How to add the field, which is required."""
    gone: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Choices that do not exist, each with its replacement; an empty name stands for all others."""


@dataclasses.dataclass
class Rule:
    """How the field `name` of a class is checked."""

    name: str
    hint: Any
    expected: str
    key: Key

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.hint)

    def check(self, value: Any) -> tuple[Any, list[Reason]]:
        """Return the converted value, and the reasons why it is wrong, each with the path of the wrong part."""
        try:
            return self._adapter.validate_python(value), []
        except ValidationError as error:
            return None, list(dict.fromkeys(self._reasons(value, error)))

    def _reasons(self, value: Any, error: ValidationError) -> Iterator[Reason]:
        """Yield what is wrong, each as the end of a sentence that starts with the name of the field."""
        found = error.errors(include_url=False)
        for item in found[:MOST_PROBLEMS]:
            given = _shown(item["input"])
            if item["type"] == "value_error":
                yield f"{given} {item['ctx']['error']}", item["loc"]
            elif item["type"] == "literal_error" and len(found) == 1:
                choices = re.findall("'([^']+)'", item["ctx"]["expected"])
                gone = self.key.gone
                cure = gone.get(str(item["input"]), gone.get("")) or closest(item["input"], choices)
                yield f"{given} is not a valid {[self.name, *item['loc']][-1]}; {cure}", item["loc"]
            else:
                at = item["loc"][:1]
                cure = "; quote it" if item["type"] in _NOT_TEXT and type(item["input"]) in _SCALARS else ""
                if at and isinstance(at[0], int) and isinstance(value, list):
                    yield f"must be {self.expected}, not {_shown(value[at[0]])}{cure}", at
                else:
                    yield f"must be {self.expected}, not {_shown(value)}{cure}", ()
                return


def _metadata(hint: Any) -> Iterator[Any]:
    for part in get_args(hint):
        yield from _metadata(part)
        yield part


@cache
def rules_of(cls: type) -> dict[str, Rule]:
    """Return the rules of the fields that a file may have."""
    rules: dict[str, Rule] = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        found = list(_metadata(hint))
        texts = [item.description for item in found if isinstance(item, FieldInfo) and item.description]
        key = next((item for item in found if isinstance(item, Key)), None)
        if texts or key:
            rules[name] = Rule(name, hint, (texts or [""])[-1], key or Key())
    return rules


class Fields:
    """A mapping of a file.

    Args:
        document: the file.
        path: the keys that lead to the mapping.
        problems: problems are added here.
        step: the step of the mapping, for messages.
        is_part: whether the mapping is a field of the step.
    """

    def __init__(
        self, document: Document, path: KeyPath, problems: list[Problem], step: str = "", *, is_part: bool = False
    ) -> None:
        self.is_part = is_part
        self.document = document
        self.path = path
        self.problems = problems
        self.step = step
        self.used: dict[str, Hashable] = {}
        """The fields that were read, each with its spelling."""
        found = document.data
        for key in path:
            found = found[key]
        self.is_mapping = isinstance(found, Mapping)
        self.data: Mapping[Any, Any] = found if self.is_mapping else {}
        if not self.is_mapping:
            self.wrong(None, f"must be a mapping, not {'nothing' if found is None else _shown(found)}")

    def part(self, key: Hashable) -> Fields:
        """Return the mapping in a field."""
        return Fields(self.document, (*self.path, key), self.problems, self.step, is_part=True)

    def place(self, *path: Hashable) -> Place:
        """Return the position of a field, or of a part of it."""
        return self.document.place((*self.path, *path), self.step)

    def wrong(self, key: Hashable | None, text: str, *path: Hashable) -> None:
        """Add a problem of a field, or of the mapping itself; `path` leads to the wrong part of the field."""
        own = f"{self.path[-1]!r} " if self.path and (self.is_part or not self.step) else ""
        name = own if key is None else f"{key!r} "
        self.problems.append(Problem(f"{name}{text}", self.place(*([] if key is None else [key]), *path)))

    def read(
        self, cls: type[T], what: str = "", also: Sequence[str] = (), inner: Inner | None = None, **values: Any
    ) -> T:
        """Return the fields as a `cls`; invalid ones become problems and have their defaults.

        Args:
            cls: a dataclass.
            what: the mapping in messages; without it, unknown fields are ignored.
            also: further fields that are allowed.
            inner: reads the field of a rule without a type of its own, which is at a key.
            values: fields of the class that are not in the mapping.
        """
        rules = rules_of(cls)  # type: ignore[arg-type] # mypy does not see that a class is hashable
        spellings = {spelling: rule for rule in rules.values() for spelling in (rule.name, *rule.key.also)}
        for key, value in self.data.items():
            rule = spellings.get(key)
            if rule is None:
                if what and key not in also:
                    self.wrong(key, f"is not a field of {what}; {closest(key, [*spellings, *also])}")
            elif rule.name in self.used:
                self.wrong(key, f"means the same as {self.used[rule.name]!r}; keep one")
            elif value is not None:
                self.used[rule.name] = key
                if rule.expected == "text":
                    value = self.document.written.get((*self.path, key), value)  # noqa: PLW2901 - of the same field
                found, reasons = (inner(rule, key), []) if inner and not rule.expected else rule.check(value)
                for text, path in reasons:
                    self.wrong(key, text, *path)
                values |= {} if reasons else {rule.name: found}
        for name, rule in rules.items():
            if rule.key.cure and self.is_mapping and (name not in self.used or self.data[self.used[name]] == ""):
                self.wrong(None, f"has no {name!r}; {rule.key.cure}")
        return cls(**values)
