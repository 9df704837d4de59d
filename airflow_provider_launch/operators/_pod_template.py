"""Pod templates that the options of a task name by path: relative to the DAG file, and rendered like the DAG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.specs import overlays
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.paths import expanded

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.operators._sources import Sources
    from airflow_provider_launch.operators.launch import LaunchAppOperator
    from airflow_provider_launch.specs.runopts import runopts

TEMPLATE, BY_ROLE = "pod_template", "by_role"


def template_paths(options: Mapping[str, Any], schema: runopts) -> Iterator[str]:
    """Yield the path of each pod template that options name, also for one role."""
    for name, value in options.items():
        known = schema.registered_name(str(name))
        if known == TEMPLATE and isinstance(value, str):
            yield value
        elif known == BY_ROLE and isinstance(value, Mapping):
            for own in value.values():
                yield from template_paths(own, schema) if isinstance(own, Mapping) else ()


def with_pod_templates(
    cfg: Mapping[str, Any],
    operator: LaunchAppOperator,
    schema: runopts,
    context: Context | None,
    sources: Sources | None,
) -> dict[str, Any]:
    """Return the options of the task with each pod template as an object.

    Args:
        cfg: the options, cast to their types.
        operator: the task, rendered.
        schema: the options of its scheduler.
        context: the context of the run. None: templates in the file stay as they are.
        sources: decides which files may be read. None: any.

    Raises:
        InvalidAppError: a file cannot be read, or may not be named.
    """

    def read(options: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(options)
        for name, value in options.items():
            known = schema.registered_name(str(name))
            if known == TEMPLATE and isinstance(value, str):
                found[name] = _read(value, operator, context, sources)
            elif known == BY_ROLE and isinstance(value, Mapping):
                found[name] = {role: read(own) if isinstance(own, Mapping) else own for role, own in value.items()}
        return found

    return read(cfg)


def _read(given: str, operator: LaunchAppOperator, context: Context | None, sources: Sources | None) -> Any:
    dag = operator.get_dag()
    place = Path(dag.fileloc).parent if dag and dag.fileloc else Path.cwd()
    location = given if "://" in given else str(place / expanded(given))
    if sources is not None:
        sources.check_option(given, location, f"option {TEMPLATE}")
    try:
        # It was checked above as it is written.
        with overlays.guarded(lambda _: None):
            document = overlays.read_file(location)
    except ValueError as error:
        raise InvalidAppError(f"option {TEMPLATE}: {error}; write templates in quotes") from error
    # Each text is rendered after parsing, so that a value of a run is never more than a text.
    return document if context is None else operator.render_template(document, context)
