"""Where the secrets are in a launched app, so that each process that follows it masks them.

Airflow masks values that the same process has fetched, but a triggerer, or a worker that resumes, has not fetched the
values that the launching worker put into an app. That worker passes on their locations, and the others read the values
from the scheduler.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_launch._task.secrets import RANK_OF_FORM, chosen, forms_of, hidden_spans, is_fetched, merge
from airflow_provider_launch.specs.dryrun import AppDryRunInfo
from airflow_provider_launch.specs.errors import AppUnavailableError, SchedulerRejectedError
from airflow_provider_launch.specs.macros import macros
from airflow_provider_launch.specs.secrets import hidden_in_args, hidden_in_document, hidden_in_env

if TYPE_CHECKING:
    from airflow_provider_launch.schedulers.api import Scheduler
    from airflow_provider_launch.specs.roles import AppDef, Role

_MOST_OF_AUTHORS = 64
_RANKS_OF_OWNERS = {"author": (-4, RANK_OF_FORM, -3), "airflow": (-2, RANK_OF_FORM, -1)}
"""For each rank of `forms_of`. The lines of one key do not take the places of whole values."""


class Place(NamedTuple):
    """The location of a secret in an app; travels as a JSON list."""

    role: str
    field: str
    """`env`, `args`, or `copied`: a variable of the launcher."""
    name: str | int
    """The name of the variable, or the index of the argument."""
    start: int
    end: int | None
    """None: the value is hidden as a whole."""
    owner: str = ""
    """`author`: written in the DAG file; `airflow`: fetched from Airflow. Values of a run do not push these out."""


def places_of(app: AppDef, of_authors: Iterable[str] = ()) -> list[Place]:
    """Return the locations of the values in a rendered app that this process masks.

    Args:
        app: the app.
        of_authors: values that authors wrote, the most important ones first.
    """
    found: list[Place] = []
    texts = [(role.name, *each) for role in app.roles for each in _texts(role)]
    for value in dict.fromkeys(of_authors):
        from airflow_provider_launch.functions.arguments import written  # few tasks need it

        # One location is enough to know the value, also as a function's arguments have it.
        forms = (value, macros.escape(value), macros.escape(written(value)[1:-1]))
        places = ((*each[:3], each[3].find(form), len(form)) for form in forms for each in texts if form in each[3])
        for role_name, kind, name, start, length in islice(places, 1):
            found.append(Place(role_name, kind, name, start, start + length, "author"))
        # Another element of a mapped task has others.
        if len(found) == _MOST_OF_AUTHORS:
            break
    for role in app.roles:
        for kind, name, text in _texts(role):
            for start, end in _spans(text):
                owner = "airflow" if is_fetched(text[start:end].replace("$$", "$")) else ""
                found.append(Place(role.name, kind, name, start, end, owner))
        # No more than can be masked, because the search for each takes as long as the text.
        named = hidden_in_env(role.env) | hidden_in_args(role.args)
        by_name, _ = chosen({value: 0 if is_named else 2 for value, is_named in named.items() if value})
        for kind, name, text in _texts(role):
            at = {value: text.index(value) for value in by_name if value in text}
            found += [Place(role.name, kind, name, start, start + len(value)) for value, start in at.items()]
    return found


def _spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of a text of an app that Airflow's masker would hide in it, or where it is printed."""
    spans = hidden_spans(text)
    # A value that was fetched has each `$` once, and an app has it twice.
    doubled = [match.start() for match in re.finditer(r"\$\$", text)]
    if doubled:
        single = [at - number for number, at in enumerate(doubled)]
        printed = hidden_spans(text.replace("$$", "$"))
        spans += [(start + bisect_left(single, start), end + bisect_left(single, end)) for start, end in printed]
    return [*dict.fromkeys(spans)]


def places_in_copied(copied: Mapping[str, Mapping[str, str]]) -> list[Place]:
    """Return the same for variables of the launcher that replicas inherit, by role."""
    return [
        Place(role_name, "copied", name, 0, None)
        for role_name, env in copied.items()
        for name, value in env.items()
        if hidden_in_env({name: value}) or hidden_spans(value)
    ]


def checked_places(value: object) -> list[Place] | None:
    """Return locations from a store that users can edit; None if they are not valid."""
    if not isinstance(value, (list, tuple)):
        return None
    try:
        places = [Place(*each) for each in value]
    except TypeError:
        return None
    return places if all(map(_is_valid, places)) else None


def _is_valid(place: Any) -> bool:
    numbers = [number for number in (place.start, place.end) if number is not None]
    texts = (place.role, place.field, place.owner)
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(place.name, (str, int))
        and all(type(number) is int and number >= 0 for number in numbers)
    )


def hidden_values(
    roles: Iterable[Role], copied: Mapping[str, Mapping[str, str]], places: Iterable[Place]
) -> dict[str, int]:
    """Return the values with secret-like names and those at the given locations; missing locations are ignored.

    The number of each is its rank, as in `forms_of`; for values of the authors, and fetched ones, it is below zero.
    """
    roles = list(roles)
    texts = {(role.name, kind, name): text for role in roles for kind, name, text in _texts(role)}
    texts |= {(role_name, "copied", name): text for role_name, env in copied.items() for name, text in env.items()}
    found: dict[str, bool] = {}
    owned: dict[str, dict[str, bool]] = {owner: {} for owner in _RANKS_OF_OWNERS}
    for role in roles:
        merge(found, hidden_in_env(role.env))
        merge(found, hidden_in_args(role.args))
    for env in copied.values():
        merge(found, hidden_in_env(env))
    for place in places:
        text = texts.get((place.role, place.field, place.name), "")
        value = text[place.start : place.end]
        if place.owner in owned:
            owned[place.owner][value] = True
        else:
            merge(found, {value: value == text})
    forms = forms_of(found)
    for owner, ranks in _RANKS_OF_OWNERS.items():
        for value, rank in forms_of(owned[owner]).items():
            forms[value] = min(ranks[rank], forms.get(value, ranks[rank]))
    return forms


def hidden_in_app(app: AppDef) -> dict[str, int]:
    """Return the values of an app that must be masked; also those in fields that only errors and the request show."""
    others = [app.metadata, *({name: each for name, each in vars(role).items() if name not in ("env", "args")}
                              for role in app.roles)]  # fmt: skip
    return forms_of(hidden_in_document(others)) | hidden_values(app.roles, {}, places_of(app))


def kept_values(scheduler: Scheduler[Any], app_id: str, places: Iterable[Place] = ()) -> dict[str, int]:
    """Return the secrets of the app that the scheduler has; empty for an unknown app.

    Args:
        scheduler: where the app runs.
        app_id: the app.
        places: locations of those without a secret-like name.
    """
    native = None
    # Without the right to read requests, the description has the roles.
    with contextlib.suppress(SchedulerRejectedError):
        native = scheduler.describe_native(app_id)
    app = getattr(native.request, "app_def", None) if native else None
    if app is None:
        response = scheduler.describe(app_id)
        roles = response.roles if response else []
    else:
        roles = app.roles
    return hidden_values(roles, copied_variables(native), places)


def copied_variables(native: AppDryRunInfo[Any] | None) -> dict[str, dict[str, str]]:
    """Return the launcher's variables that the replicas of each role inherit; empty if the request has none.

    Raises:
        AppUnavailableError: the stored request is damaged.
    """
    roles = getattr(native.request, "roles", ()) if native else ()
    # A plug-in may have anything under this name.
    listed = roles if isinstance(roles, (list, tuple)) else ()
    found: dict[str, dict[str, str]] = {}
    for role in listed:
        env = getattr(role, "copied_env", {})
        if not isinstance(env, Mapping) or not all(isinstance(text, str) for pair in env.items() for text in pair):
            raise AppUnavailableError("the stored request is damaged: its variables are not texts by name")
        if env:
            # The roles of a plug-in may have no names.
            found.setdefault(getattr(role, "name", ""), {}).update(env)
    return found


def _texts(role: Role) -> Iterator[tuple[str, str | int, str]]:
    yield from (("env", name, text) for name, text in role.env.items())
    yield from (("args", number, text) for number, text in enumerate(role.args))
