"""The functions and classes of authors that Airflow calls with values of a run, to make the fields of a mapped task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from airflow_provider_launch.operators._values import file_of, functions_in, module_of

_OURS = __name__.partition(".")[0]


def functions_of_map(mapped: Any) -> list[Any]:
    """Return the functions of `.map()` that make an app, or a row with one: the authors wrote them."""
    from airflow_provider_launch.operators._code import is_library

    given = mapped.get("app") if isinstance(mapped, Mapping) else mapped
    functions = getattr(given, "callables", ()) if isinstance(given, XComArg) else ()
    return [each for each in functions if any(not is_library(own.__code__.co_filename) for own in functions_in(each))]


def classes_of_authors(kind: type) -> list[type]:
    """Return the class and its bases that an author wrote, whose functions Airflow calls with values of the run.

    Classes of Python and of libraries do not count, except in installed packages that have such an operator.
    """
    from airflow_provider_launch.operators._code import is_library, package_of

    bases = [base for base in kind.__mro__ if _root_of(base) not in {_OURS, "airflow", "builtins"}]
    files = {base: file_of(module_of(base)) for base in bases}
    operators = [base for base in bases if _OURS in map(_root_of, base.__mro__)]
    packages = {each for base in operators for each in package_of(files[base])}
    return [base for base in bases if not is_library(files[base]) or package_of(files[base]) & packages]


def _root_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]
