"""Reads a document into the model; invalid fields become problems and do not stop the reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, time
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_provider_launch.pipelines.document import Document, KeyPath, load_document
from airflow_provider_launch.pipelines.fields import Fields
from airflow_provider_launch.pipelines.model import (
    Catalog,
    ConditionalStep,
    DagStep,
    ExecutorSection,
    FailStep,
    Graph,
    MapStep,
    ParallelStep,
    PipelineModel,
    Return,
    Step,
    StubStep,
    SuccessStep,
    TaskStep,
)
from airflow_provider_launch.pipelines.objects import FOLDER
from airflow_provider_launch.pipelines.parameters import REDUCERS, is_name
from airflow_provider_launch.pipelines.problems import Place, Problem, closest

COMMAND_TYPES = ("python", "shell", "notebook", "app")
RETURN_KINDS = ("json", "metric", "object")
STEP_TYPES = ("task", "stub", "as-is", "success", "fail", "parallel", "map", "dag", "conditional")
_GONE_COMMANDS = {
    "python-lambda": "write a function in a module",
    "python-function": "write python",
    "container": "write shell, and name the image in the executor's config",
}
_GONE_STEPS = {"loop": "unroll it, or let one task loop"}
# Airflow does this work; the sections are accepted so that existing files can be read.
_KEPT_BY_AIRFLOW = (
    "run_log_store", "run-log-store", "run_log", "experiment_tracker", "experiment-tracker", "pickler", "secrets",
    "job-executor",
)  # fmt: skip
_EXECUTOR_KEYS = ("executor", "mode", "pipeline-executor")


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
    executor = ExecutorSection()
    catalog: tuple[str, str, tuple[str, ...]] = ("", "", ())
    parameters: dict[str, Any] = {}
    for section in sections:
        if not isinstance(section.data, Mapping):
            problems.append(Problem("must be a mapping", section.place(())))
            continue
        top = Fields(section, (), problems)
        graph_text = top.any("dag")
        assert graph_text is not None or section is not document
        top.text("name")
        top.text("description")
        for key in _KEPT_BY_AIRFLOW:
            top.any(key)
        if top.has(*_EXECUTOR_KEYS):
            executor = _executor(section, (top.has(*_EXECUTOR_KEYS),), problems) or executor
        if top.any("parameters") is not None:
            parameters.update(_parameters(section, ("parameters",), problems))
        if top.has("catalog"):
            catalog = _catalog_settings(section, problems)
        top.refuse_others("a pipeline", _additions(section))
    reader = _Reader(document, folder, problems, files)
    graph = reader.graph(("dag",), ())
    if graph is None:
        return None
    return PipelineModel(
        graph=graph,
        name=str(document.data.get("name") or name),
        folder=folder,
        executor=executor,
        parameters={**reader.parameters, **parameters},
        catalog=catalog[0],
        catalog_conn_id=catalog[1],
        project=catalog[2],
        file=document.file,
    )


def _additions(document: Document) -> list[str]:
    """Return top-level keys of a file besides fields: parts that are used elsewhere, and `x-...`."""
    shared = {str(key) for path in document.shared for key in path[:1]}
    return [*shared, *(str(key) for key in document.data if str(key).startswith("x-"))]


def _executor(document: Document, path: KeyPath, problems: list[Problem], step: str = "") -> ExecutorSection | None:
    data: Any = document.data
    for key in path:
        data = data[key]
    if isinstance(data, str):
        return ExecutorSection(data, {}, document.place(path, step))
    fields = Fields(document, path, problems, step)
    kind = fields.text("type", required="name an executor, such as local")
    config = fields.mapping("config")
    fields.refuse_others("an executor; its settings belong below 'config'")
    return ExecutorSection(kind or "local", config, document.place(path, step))


def _catalog_settings(document: Document, problems: list[Problem]) -> tuple[str, str, tuple[str, ...]]:
    if isinstance(document.data["catalog"], str):
        return document.data["catalog"], "", ()
    fields = Fields(document, ("catalog",), problems)
    kind = fields.text("type") or "file-system"
    if kind not in ("file-system", "do-nothing", "object-storage"):
        fields.wrong("type", f"{kind!r} is not a valid type of catalog; use object-storage, with a URL as its location")
    config = Fields(document, ("catalog", "config"), problems) if isinstance(fields.any("config"), Mapping) else fields
    location = config.text("location", "catalog_location", "path")
    conn_id = config.text("conn_id")
    config.text("compute_data_folder")
    project = config.texts("project")
    _check_patterns(config, "project", project)
    if config is not fields:
        config.refuse_others("a catalog's config")
    fields.refuse_others("a catalog")
    return location, conn_id, project


class _Reader:
    """Reads the graphs of one file and of the files that it includes."""

    def __init__(self, document: Document, folder: Path, problems: list[Problem], files: tuple[Path, ...]) -> None:
        self._document = document
        self._folder = folder
        self._problems = problems
        self._files = files
        self.parameters: dict[str, Any] = {}
        """Those of included files."""

    def graph(self, path: KeyPath, around: tuple[str, ...]) -> Graph | None:
        """Return the graph at `path`."""
        shown = " / ".join(around)
        before = len(self._problems)
        fields = Fields(self._document, path, self._problems, shown)
        start_at = fields.text("start_at", required="name the first step")
        description = fields.text("description")
        fields.any("name")
        steps = fields.any("steps")
        fields.refuse_others("a graph")
        if not isinstance(steps, Mapping) or not steps:
            if len(self._problems) == before or isinstance(fields.data, Mapping):
                fields.wrong(None, "has no 'steps'; add at least one")
            return None
        found: dict[str, Step] = {}
        for name in steps:
            step = self._step((*path, "steps", name), str(name), around)
            if step is not None:
                found[str(name)] = step
        return Graph(start_at, _with_terminals(found), description, self._document.place(path, shown))

    def _step(self, path: KeyPath, name: str, around: tuple[str, ...]) -> Step | None:
        shown = " / ".join((*around, name))
        fields = Fields(self._document, path, self._problems, shown)
        if not fields.data:
            return None
        kind = fields.text("type", required=f"use one of {', '.join(STEP_TYPES)}")
        if not kind:
            return None
        place = fields.place()
        if kind in ("success", "fail"):
            fields.text("next"), fields.text("on_failure")
            return (SuccessStep if kind == "success" else FailStep)(name, place=place)
        if kind not in STEP_TYPES:
            cure = _GONE_STEPS.get(kind) or closest(kind, STEP_TYPES)
            fields.wrong("type", f"{kind!r} is not a valid type of step; {cure}")
            return None
        common: dict[str, Any] = {
            "name": name,
            "next": fields.text("next", "next_node", required="name the step that follows, or 'next: success'"),
            "on_failure": fields.text("on_failure"),
            "place": place,
        }
        if kind in ("stub", "as-is"):
            return StubStep(**common)
        step = {
            "task": self._task,
            "parallel": self._parallel,
            "map": self._map,
            "dag": self._dag,
            "conditional": self._conditional,
        }[kind](fields, path, (*around, name), common)
        fields.refuse_others(f"a {kind}")
        return step

    # ---- kinds of steps --------------------------------------------------------------------------------------

    def _task(self, fields: Fields, path: KeyPath, names: tuple[str, ...], common: dict[str, Any]) -> Step:
        kind = fields.text("command_type") or "python"
        kind = "python" if kind == "async-python" else kind
        if kind not in COMMAND_TYPES:
            cure = _GONE_COMMANDS.get(kind) or closest(kind, COMMAND_TYPES)
            fields.wrong("command_type", f"{kind!r} is not a valid command_type; {cure}")
        app = fields.mapping("app") if fields.has("app") else None
        component, args = fields.text("component"), fields.mapping("args")
        command = fields.text("command", required="" if kind == "app" else "name the command to run")
        if kind == "app" and (app is None) == (not component):
            fields.wrong("command_type", "'app' needs either 'app' or 'component'")
        if kind != "app" and (app is not None or component):
            fields.wrong("app" if app is not None else "component", "needs 'command_type: app'")
        if kind == "python" and command and not re.fullmatch(r"[^\W\d]\w*(\.[\w-]+)*\.[^\W\d]\w*", command):
            fields.wrong("command", f"{command!r} must be module.function, or add 'command_type: shell'")
        is_template = fields.flag("template", default=True)
        if command and is_template and (reason := _template_error(command)):
            cure = "add 'template: false' if it uses none, else put this part between {% raw %} and {% endraw %}"
            fields.wrong("command", f"is not a valid template: {reason}; {cure}")
        shown = " / ".join(names)
        executor = _executor(self._document, (*path, "executor"), self._problems, shown) if (
            fields.any("executor") is not None
        ) else None  # fmt: skip
        return TaskStep(
            **common,
            command=command,
            command_type=kind,
            app=app,
            component=component,
            args=args,
            template=is_template,
            returns=self._returns(fields, kind),
            secrets=self._secrets(fields),
            catalog=self._catalog(fields, path, shown),
            executor=executor,
            overrides=fields.mapping("overrides", "executor_config", "mode_config"),
            max_attempts=fields.number("max_attempts", "retry", least=1),
            retry_delay_s=fields.number("retry_delay_s", least=0, whole=False),
            airflow=fields.mapping("airflow"),
            notebook_output_path=self._inside(fields, "notebook_output_path"),
            output_cell_tag=fields.text("output_cell_tag"),
        )

    def _parallel(self, fields: Fields, path: KeyPath, names: tuple[str, ...], common: dict[str, Any]) -> Step:
        return ParallelStep(**common, branches=self._branches(fields, path, names))

    def _conditional(self, fields: Fields, path: KeyPath, names: tuple[str, ...], common: dict[str, Any]) -> Step:
        parameter = fields.text("parameter", required="name the parameter that decides")
        branches = self._branches(fields, path, names)
        default = self.graph((*path, "default"), (*names, "default")) if fields.any("default") is not None else None
        return ConditionalStep(**common, parameter=parameter, branches=branches, default=default)

    def _branches(self, fields: Fields, path: KeyPath, names: tuple[str, ...]) -> dict[str, Graph]:
        branches = fields.any("branches")
        if not isinstance(branches, Mapping) or not branches:
            fields.wrong("branches" if "branches" in fields.data else None, "has no branches; add at least one")
            return {}
        found = {str(name): self.graph((*path, "branches", name), (*names, str(name))) for name in branches}
        return {name: graph for name, graph in found.items() if graph is not None}

    def _map(self, fields: Fields, path: KeyPath, names: tuple[str, ...], common: dict[str, Any]) -> Step:
        iterate_on = fields.any("iterate_on")
        if isinstance(iterate_on, list):
            iterate_on = tuple(iterate_on)
        elif not isinstance(iterate_on, str) or not iterate_on:
            fields.wrong("iterate_on" if iterate_on is not None else None, "needs 'iterate_on': a parameter, or a list")
            iterate_on = ""
        reducer = fields.any("reducer", default="list")
        self._check_reducer(fields, reducer)
        branch = fields.any("branch")
        if branch is None:
            fields.wrong(None, "has no 'branch': the graph that runs for each element")
        if fields.mapping("overrides"):
            fields.wrong("overrides", "has no effect on a map, which runs no app; move it to the steps of its 'branch'")
        return MapStep(
            **common,
            iterate_on=iterate_on,
            iterate_as=fields.text("iterate_as", required="name the parameter that holds the element"),
            branch=self.graph((*path, "branch"), names) if branch is not None else None,
            reducer=reducer,
            parallelism=fields.number("parallelism", least=1),
        )

    def _check_reducer(self, fields: Fields, reducer: Any) -> None:
        for one in reducer.values() if isinstance(reducer, Mapping) else [reducer]:
            if not isinstance(one, str) or (one not in REDUCERS and not re.fullmatch(r"\w+(\.\w+)+", one)):
                fields.wrong(
                    "reducer",
                    f"{one!r} is not a valid reducer; use {', '.join(REDUCERS)}, or module.function (no lambda)",
                )

    def _dag(self, fields: Fields, _: KeyPath, names: tuple[str, ...], common: dict[str, Any]) -> Step:
        text = fields.text("dag_definition", required="name the file")
        branch = self._included(fields, text, names) if text else None
        return DagStep(**common, dag_definition=text, branch=branch)

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
        reader = _Reader(document, path.parent, self._problems, (*self._files, path))
        top = Fields(document, (), self._problems, " / ".join(names))
        if top.any("parameters") is not None:
            reader.parameters.update(_parameters(document, ("parameters",), self._problems))
        for key in ("dag", "name", "description", *_KEPT_BY_AIRFLOW):
            top.any(key)
        for key in (*_EXECUTOR_KEYS, "catalog"):
            if top.has(key):
                top.wrong(key, "of an included file is not used; move it to the file that includes this one")
        top.refuse_others("a pipeline", _additions(document))
        graph = reader.graph(("dag",), names)
        self.parameters.update(reader.parameters)
        return graph

    # ---- parts of a task -------------------------------------------------------------------------------------

    def _returns(self, fields: Fields, command_type: str) -> tuple[Return, ...] | None:
        given = fields.any("returns")
        if given is None:
            return None
        found: dict[str, Return] = {}
        for item in given if isinstance(given, list) else [given]:
            entry = {"name": item} if isinstance(item, str) else item
            if (
                not isinstance(entry, Mapping)
                or not isinstance(entry.get("name"), str)
                or set(entry) - {"name", "kind"}
            ):
                fields.wrong("returns", f"{item!r} must be a name, or a mapping of 'name' and 'kind'")
                continue
            name, kind = entry["name"], str(entry.get("kind", "json"))
            if kind not in RETURN_KINDS:
                fields.wrong("returns", f"kind {kind!r} of {name!r} is unknown; {closest(kind, RETURN_KINDS)}")
            if kind == "object" and command_type not in ("python", "notebook"):
                fields.wrong("returns", f"{name!r} is an object, which only a function or a notebook can return")
            if kind == "object" and not (name.isidentifier() and name.isascii()):
                fields.wrong("returns", f"{name!r} is an object, whose name must be a Python name")
            if command_type == "shell" and not is_name(name):
                fields.wrong("returns", f"{name!r} is not a valid name of a variable, which a shell command returns")
            if name in found:
                fields.wrong("returns", f"{name!r} is returned twice")
            found[name] = Return(name, kind)
        return tuple(found.values())

    def _secrets(self, fields: Fields) -> dict[str, str]:
        given = fields.any("secrets")
        if given is None:
            return {}
        pairs = dict(given) if isinstance(given, Mapping) else {}
        if isinstance(given, list):
            pairs = {item: item for item in given if isinstance(item, str)}
        if (not pairs and given) or not all(isinstance(text, str) for pair in pairs.items() for text in pair):
            fields.wrong("secrets", "must be a list of names, or a mapping of variable to name")
            return {}
        for name in pairs:
            if not is_name(name):
                fields.wrong("secrets", f"{name!r} is not a valid name of an environment variable; write a mapping")
        return pairs

    def _catalog(self, fields: Fields, path: KeyPath, shown: str) -> Catalog:
        if not fields.mapping("catalog"):
            return Catalog()
        part = Fields(self._document, (*path, "catalog"), self._problems, shown)
        catalog = Catalog(part.texts("get"), part.texts("put"), part.texts("project"))
        part.any("store_copy")
        if part.text("compute_data_folder") not in ("", "."):
            part.wrong("compute_data_folder", "must be the task's folder; put the folder's name into the patterns")
        part.refuse_others("a catalog")
        for key, patterns in (("get", catalog.get), ("put", catalog.put), ("project", catalog.project)):
            _check_patterns(part, key, patterns)
        return catalog

    def _inside(self, fields: Fields, key: str) -> str:
        text = fields.text(key)
        if text and (reason := _outside(text)):
            fields.wrong(key, f"{text!r} {reason}; it is a path inside the task's folder")
        return text


def _template_error(text: str) -> str:
    """Return why Jinja cannot read a text; empty if it can."""
    if not any(mark in text for mark in ("{{", "{%", "{#")):
        return ""
    import jinja2

    try:
        jinja2.Environment().parse(text)  # noqa: S701 - nothing is rendered
    except jinja2.TemplateSyntaxError as error:
        return str(error.message)
    return ""


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


def _check_patterns(fields: Fields, key: str, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        if reason := _outside(pattern):
            fields.wrong(key, f"{pattern!r} {reason}; patterns stay inside the task's folder")


def _outside(pattern: str) -> str:
    path = PurePosixPath(pattern)
    if FOLDER in path.parts:
        return "is the folder of objects"
    if path.is_absolute() or pattern.startswith("~"):
        return "starts outside"
    return "leads outside" if ".." in path.parts else ""


def _with_terminals(steps: dict[str, Step]) -> dict[str, Step]:
    """Return the steps, with missing terminals added under their usual names."""
    found = dict(steps)
    named = {name for step in steps.values() for name in step.targets}
    if "success" in named and "success" not in found and not any(isinstance(s, SuccessStep) for s in found.values()):
        found["success"] = SuccessStep("success")
    if "fail" in named and "fail" not in found and not any(isinstance(s, FailStep) for s in found.values()):
        found["fail"] = FailStep("fail")
    return found
