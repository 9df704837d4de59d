"""Reads a document into the model; invalid fields become problems and do not stop the reading."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from airflow_provider_launch.pipelines.document import Document, KeyPath, load_document
from airflow_provider_launch.pipelines.fields import Fields, Key, Other, Rule, Text
from airflow_provider_launch.pipelines.model import (
    Catalog,
    CatalogSection,
    ConditionalStep,
    DagStep,
    ExecutorSection,
    FailStep,
    Graph,
    MapStep,
    ParallelStep,
    PipelineModel,
    Step,
    StubStep,
    SuccessStep,
    TaskStep,
)
from airflow_provider_launch.pipelines.parameters import is_name
from airflow_provider_launch.pipelines.problems import Place, Problem, closest

_KINDS: Mapping[str, type[Step]] = {
    "task": TaskStep, "stub": StubStep, "as-is": StubStep, "success": SuccessStep, "fail": FailStep,
    "parallel": ParallelStep, "map": MapStep, "dag": DagStep, "conditional": ConditionalStep,
}  # fmt: skip
_GONE_STEPS = {"loop": "unroll it, or let one task loop"}
# Airflow does this work; the sections are accepted so that existing files can be read.
_KEPT_BY_AIRFLOW = (
    "run_log_store", "run-log-store", "run_log", "experiment_tracker", "experiment-tracker", "pickler", "secrets",
    "job-executor",
)  # fmt: skip


@dataclass(frozen=True)
class _Top:
    """The fields of a file."""

    dag: Other = None
    name: Text = ""
    description: Text = ""
    executor: Annotated[Other, Key(("mode", "pipeline-executor"))] = None
    parameters: Other = None
    catalog: Other = None


def read_file(path: Path, config: Path | Mapping[str, Any] | None = None) -> tuple[PipelineModel | None, list[Problem]]:
    """Return the model of a file, and problems of its fields. The model is None if the file cannot be read.

    Args:
        path: the path of the file.
        config: a file, or a mapping, with sections that override those of the file: `executor`, `catalog` and so on.
    """
    document, problems = load_document(path)
    if problems and not document.data:
        return None, problems
    sections = [document, *_config(config, problems)]
    return _read(sections, path.resolve().parent, path.stem, problems, (path.resolve(),)), problems


def _config(config: Path | Mapping[str, Any] | None, problems: list[Problem]) -> list[Document]:
    if isinstance(config, Path):
        document, more = load_document(config)
        problems += more
        return [document]
    return [] if config is None else [Document(dict(config), "config")]


def read_parameters(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """Return the parameters in a YAML or JSON file, and its problems."""
    document, problems = load_document(path)
    return ({} if problems else _parameters(document, (), problems)), problems


def read_document(
    data: Mapping[str, Any], folder: Path, name: str, config: Path | Mapping[str, Any] | None = None
) -> tuple[PipelineModel | None, list[Problem]]:
    """Return the model of a document made in Python, and its problems; `config` as in `read_file`."""
    problems: list[Problem] = []
    return _read([Document(data), *_config(config, problems)], folder, name, problems, ()), problems


def _read(
    sections: list[Document], folder: Path, name: str, problems: list[Problem], files: tuple[Path, ...]
) -> PipelineModel | None:
    document = sections[0]
    if not isinstance(document.data, Mapping):
        problems.append(Problem("a pipeline is a mapping with the key 'dag'", document.place(())))
        return None
    if document.data.get("dag") is None:
        problems.append(Problem("has no 'dag'; put start_at and steps below it", Place(document.file)))
        return None
    executor, catalog, own_name = ExecutorSection(), CatalogSection(), ""
    parameters: dict[str, Any] = {}
    for section in sections:
        fields = Fields(section, (), problems)
        top = fields.read(_Top, "a pipeline", _additions(section))
        if section is document:
            own_name = top.name
        if top.executor is not None:
            executor = _executor(fields, fields.used["executor"])
        if top.parameters is not None:
            parameters.update(_parameters(section, ("parameters",), problems))
        if top.catalog is not None:
            catalog = _catalog_section(fields)
    reader = _Reader(document, folder, problems, files, catalog.compute_data_folder)
    graph = reader.graph(("dag",), ())
    if graph is None:
        return None
    return PipelineModel(
        graph=graph,
        name=own_name or name,
        folder=folder,
        executor=executor,
        parameters={**reader.parameters, **parameters},
        catalog=catalog.location,
        catalog_conn_id=catalog.conn_id,
        project=catalog.project,
        file=document.file,
    )


def _additions(document: Document) -> list[str]:
    """Return top-level keys of a file besides fields: parts that are used elsewhere, and `x-...`."""
    shared = {str(key) for path in document.shared for key in path[:1]}
    return [*_KEPT_BY_AIRFLOW, *shared, *(str(key) for key in document.data if str(key).startswith("x-"))]


def _executor(fields: Fields, key: Any) -> ExecutorSection:
    """Return the executor in a field: its type, or a mapping."""
    if isinstance(fields.data[key], str):
        return ExecutorSection(fields.data[key], place=fields.place(key))
    what = "an executor; its settings belong below 'config'"
    return fields.part(key).read(ExecutorSection, what, place=fields.place(key))


def _catalog_section(fields: Fields) -> CatalogSection:
    if isinstance(fields.data["catalog"], str):
        return CatalogSection(location=fields.data["catalog"])
    part = fields.part("catalog")
    found = part.read(CatalogSection, "a catalog", ("config",))
    if part.data.get("config") is None:
        return found
    return part.part("config").read(CatalogSection, "a catalog's config", **vars(found))


class _Reader:
    """Reads the graphs of one file and of the files that it includes."""

    def __init__(
        self, document: Document, folder: Path, problems: list[Problem], files: tuple[Path, ...], data_folder: str
    ) -> None:
        self._document = document
        self._data_folder = data_folder
        self._folder = folder
        self._problems = problems
        self._files = files
        self.parameters: dict[str, Any] = {}
        """Those of included files."""

    def graph(self, path: KeyPath, around: tuple[str, ...]) -> Graph | None:
        """Return the graph at `path`."""
        shown = " / ".join(around)
        fields = Fields(self._document, path, self._problems, shown)
        steps = fields.data.get("steps")
        found: dict[str, Step] = {}
        for name in steps if isinstance(steps, Mapping) else ():
            step = self._step((*path, "steps", name), str(name), around)
            if step is not None:
                found[str(name)] = step
        graph = fields.read(
            Graph, "a graph", ("name", "steps"), start_at="", steps=_with_terminals(found), place=fields.place()
        )
        if isinstance(steps, Mapping) and steps:
            return graph
        if fields.is_mapping:
            fields.wrong(None, "has no 'steps'; add at least one")
        return None

    def _step(self, path: KeyPath, name: str, around: tuple[str, ...]) -> Step | None:
        names = (*around, name)
        fields = Fields(self._document, path, self._problems, " / ".join(names))
        cls = _kind(fields)
        values: dict[str, Any] = {"name": name, "place": fields.place()}
        if cls is None:
            return None
        if cls in (SuccessStep, FailStep):
            return cls(**values)
        if cls is StubStep:
            return fields.read(cls, **values)
        also = ("type", "overrides") if cls is MapStep else ("type",)
        inner = partial(self._inner, fields, names)
        step = fields.read(cls, f"a {fields.data['type']}", also, inner, **values)
        if isinstance(step, TaskStep):
            if step.command_type != "app" and fields.data.get("command") in (None, ""):
                fields.wrong(None, "has no 'command'; name the command to run")
            for key, text in (*_command_problems(step), *_return_problems(step)):
                fields.wrong(key, text)
        if isinstance(step, MapStep) and fields.data.get("overrides"):
            text = "has no effect on a map, which runs no app; move it to the steps of its 'branch'"
            fields.wrong("overrides", text)
        if isinstance(step, DagStep) and step.dag_definition:
            return replace(step, branch=self._included(fields, step.dag_definition, names))
        return step

    def _inner(self, fields: Fields, names: tuple[str, ...], rule: Rule, key: Any) -> Any:
        """Return the value of a field that has fields of its own."""
        path = (*fields.path, key)
        if rule.name == "executor":
            return _executor(fields, key)
        if rule.name == "catalog":
            catalog = fields.part(key).read(Catalog, "a catalog", ("store_copy",))
            return catalog.below(catalog.compute_data_folder or self._data_folder)
        if rule.name != "branches":
            return self.graph(path, (*names, "default") if rule.name == "default" else names)
        part = fields.part(key)
        if part.is_mapping and not part.data:
            part.wrong(None, "has no branches; add at least one")
        graphs = {str(name): self.graph((*path, name), (*names, str(name))) for name in part.data}
        return {name: graph for name, graph in graphs.items() if graph is not None}

    def _included(self, fields: Fields, text: str, names: tuple[str, ...]) -> Graph | None:
        path = (self._folder / text).resolve()
        if path in self._files:
            fields.wrong("dag_definition", f"{text!r} includes itself")
            return None
        document, problems = load_document(path, str(path))
        if problems and not document.data:
            fields.wrong("dag_definition", f"{text!r} {problems[0].text}; its path is relative to this file")
            return None
        self._problems += problems
        if not isinstance(document.data, Mapping) or "dag" not in document.data:
            fields.wrong("dag_definition", f"{text!r} has no 'dag'")
            return None
        reader = _Reader(document, path.parent, self._problems, (*self._files, path), self._data_folder)
        inner = Fields(document, (), self._problems, " / ".join(names))
        top = inner.read(_Top, "a pipeline", _additions(document))
        if top.parameters is not None:
            reader.parameters.update(_parameters(document, ("parameters",), self._problems))
        for key in ("executor", "catalog"):
            if getattr(top, key) is not None:
                text = "of an included file is not used; move it to the file that includes this one"
                inner.wrong(inner.used[key], text)
        graph = reader.graph(("dag",), names)
        self.parameters.update(reader.parameters)
        return graph


def _kind(fields: Fields) -> type[Step] | None:
    """Return the class of a step; None after a problem."""
    kind = fields.data.get("type")
    cls = _KINDS.get(str(kind))
    if fields.is_mapping and kind in (None, ""):
        fields.wrong(None, f"has no 'type'; use one of {', '.join(_KINDS)}")
    elif fields.is_mapping and cls is None:
        cure = _GONE_STEPS.get(str(kind)) or closest(kind, _KINDS)
        fields.wrong("type", f"{kind!r} is not a valid type of step; {cure}")
    return cls


def _command_problems(step: TaskStep) -> Iterator[tuple[str, str]]:
    """Yield problems of the command of a task, each with its field."""
    kind, command = step.command_type, step.command
    if kind == "app" and (step.app is None) == (not step.component):
        yield "command_type", "'app' needs either 'app' or 'component'"
    if kind != "app" and (step.app is not None or step.component):
        yield "app" if step.app is not None else "component", "needs 'command_type: app'"
    if kind == "python" and command and not re.fullmatch(r"[^\W\d]\w*(\.[\w-]+)*\.[^\W\d]\w*", command):
        yield "command", f"{command!r} must be module.function, or add 'command_type: shell'"
    if step.template and any(mark in command for mark in ("{{", "{%", "{#")):
        import jinja2

        try:
            jinja2.Environment().parse(command)  # noqa: S701 - nothing is rendered
        except jinja2.TemplateSyntaxError as error:
            cure = "add 'template: false' if it uses none, else put this part between {% raw %} and {% endraw %}"
            yield "command", f"is not a valid template: {error.message}; {cure}"


def _return_problems(step: TaskStep) -> Iterator[tuple[str, str]]:
    names = [item.name for item in step.returns or ()]
    for at, item in enumerate(step.returns or ()):
        name, is_object = item.name, item.kind == "object"
        if is_object and step.command_type not in ("python", "notebook"):
            yield "returns", f"{name!r} is an object, which only a function or a notebook can return"
        if is_object and not (name.isidentifier() and name.isascii()):
            yield "returns", f"{name!r} is an object, whose name must be a Python name"
        if step.command_type == "shell" and not is_name(name):
            yield "returns", f"{name!r} is not a valid name of a variable, which a shell command returns"
        if name in names[:at]:
            yield "returns", f"{name!r} is returned twice"


def _unstorable(value: Any) -> str:
    """Return which part of a parameter JSON cannot hold; empty if none."""
    if isinstance(value, Mapping):
        return next(filter(None, map(_unstorable, value.values())), "")
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(_unstorable, value)), "")
    if isinstance(value, (date, time)):
        return "a date"
    return "" if value is None or isinstance(value, (str, int, float)) else type(value).__name__


def _parameters(document: Document, path: KeyPath, problems: list[Problem]) -> dict[str, Any]:
    """Return the parameters at `path`."""
    fields = Fields(document, path, problems)
    for name, value in fields.data.items():
        if what := _unstorable(value):
            fields.wrong(name, f"is or contains {what}, which Airflow cannot store as a parameter; quote it")
    return {str(name): value for name, value in fields.data.items()}


def _with_terminals(steps: dict[str, Step]) -> dict[str, Step]:
    """Return the steps, with missing terminals added under their usual names."""
    found = dict(steps)
    named = {name for step in steps.values() for name in step.targets}
    if "success" in named and "success" not in found and not any(isinstance(s, SuccessStep) for s in found.values()):
        found["success"] = SuccessStep("success")
    if "fail" in named and "fail" not in found and not any(isinstance(s, FailStep) for s in found.values()):
        found["fail"] = FailStep("fail")
    return found
