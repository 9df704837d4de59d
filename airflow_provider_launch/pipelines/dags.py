"""Makes DAGs of pipeline files and models."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from airflow.sdk import DAG, Param, get_parsing_context

from airflow_provider_launch.pipelines import parameters
from airflow_provider_launch.pipelines.document import read_text
from airflow_provider_launch.pipelines.executors import task_limit
from airflow_provider_launch.pipelines.file_docs import docs_of_files
from airflow_provider_launch.pipelines.gates import Scope
from airflow_provider_launch.pipelines.ids import dag_id_of, task_id_of
from airflow_provider_launch.pipelines.model import PipelineModel
from airflow_provider_launch.pipelines.problems import PipelineError, Place, Problem
from airflow_provider_launch.pipelines.render import Renderer
from airflow_provider_launch.pipelines.validation import Config, load, read

PATTERNS = ("*.yaml", "*.yml")
_COUNTERPARTS = {
    "catalog": "config={'catalog': ...}",
    "configuration_file": "config",
    "conn_id": "launch_conn_id",
    "executor": "config={'executor': ...}",
    "name": "dag_id",
    "parameters": "params",
    "run_id": "the id of the run, which Airflow makes",
    "tag": "tags, a list",
}
"""Arguments of runnable's `execute` and of `Pipeline`, and names of other operators, to the argument of the DAG."""

log = logging.getLogger(__name__)


def dag_from_file(
    path: str | Path,
    dag_id: str | None = None,
    *,
    launch_conn_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    parameters_file: str | Path | None = None,
    config: Config | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline file.

    Args:
        path: the path of the file, relative to the caller's file.
        dag_id: default is the `name` in the file, else the name of the file.
        launch_conn_id: the connection of the pipeline's executor, unless the file names one.
        params: parameters that override those of the files and of the environment.
        parameters_file: a YAML or JSON file of parameters that override those of the pipeline; relative to the
            caller's file.
        config: a file, or a mapping, with sections that override those of the file: `executor`, `catalog`,
            `parameters`.
        dag_kwargs: arguments of `DAG`. `doc_md` is by default the text of the file, with secrets masked.

    Raises:
        PipelineError: with all problems of the file.
        TypeError: an argument has another name here; the text has the name.
    """
    base = _folder_of_caller(sys._getframe(1).f_globals)  # noqa: SLF001 - a path is meant relative to the caller's file
    if isinstance(config, (str, Path)):
        config = base / config
    if parameters_file is not None:
        parameters_file = base / parameters_file
    # A `Param` belongs to the form; the checks need only its name.
    model = load(base / path, config, parameters_file=parameters_file, params=params)
    # The start of a task needs no documentation.
    if not get_parsing_context().task_id:
        dag_kwargs.setdefault("doc_md", docs_of_files(base / path, model))
    return dag_from_model(model, dag_id, launch_conn_id=launch_conn_id, params=params, **dag_kwargs)


def load_pipelines(folder: str | Path, namespace: dict[str, Any], **kwargs: Any) -> list[DAG]:
    """Add the DAG of each pipeline file of a folder to a module: `load_pipelines("pipelines", globals())`.

    A file without a `dag` section, such as one with parameters only, is ignored. A wrong file becomes an import error
    of its own in Airflow, and the other DAGs are added. When Airflow starts a task, only the file of its DAG is read.

    Args:
        folder: relative to the caller's file.
        namespace: the module's `globals()`.
        kwargs: arguments of `dag_from_file`, whose paths are also relative to the caller's file.

    Returns:
        The DAGs of the valid files, in the order of the file names.

    Raises:
        PipelineError: the folder does not exist.
    """
    caller = _folder_of_caller(namespace)
    for name in ("config", "parameters_file"):
        if isinstance(kwargs.get(name), (str, Path)):
            kwargs[name] = caller / kwargs[name]
    base = caller / folder
    if not base.is_dir():
        raise PipelineError([Problem(f"folder {str(base)!r} does not exist; the path is relative to the caller")])
    wanted = None if "dag_id" in kwargs else get_parsing_context().dag_id
    dags: list[DAG] = []
    files: dict[str, Path] = {}
    for path in sorted(found for pattern in PATTERNS for found in base.glob(pattern)):
        if not _may_have_dag(path, wanted):
            continue
        try:
            dag = _checked(dag_from_file(path, **{"auto_register": False, **kwargs}), path, files)
        except Exception as error:  # noqa: BLE001 - any error must stay with its own file
            problem = error if isinstance(error, PipelineError) else PipelineError([_unexpected(path, error)])
            log.error("%s", problem)  # noqa: TRY400 - the message has file and line
            wrong = WrongPipeline(path, problem)
            namespace[f"pipeline_{task_id_of(wrong.dag_id)}"] = wrong
            continue
        dags.append(dag)
        files[dag.dag_id] = path
        namespace[f"pipeline_{task_id_of(dag.dag_id)}"] = dag
    return dags


def _checked(dag: DAG, path: Path, files: Mapping[str, Path]) -> DAG:
    """Raise the errors that Airflow would report for the whole module, whose DAGs it would drop."""
    _check(dag)
    if dag.dag_id in files:
        text = f"becomes the DAG {dag.dag_id!r}, like {files[dag.dag_id].name!r}; set 'name' or rename the file"
        raise PipelineError([Problem(text, Place(str(path)))])
    return dag


def validate(
    path: str | Path,
    config: Config | None = None,
    *,
    parameters_file: str | Path | None = None,
    params: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Return all problems of a file in the order of its lines; empty if `dag_from_file` accepts it.

    Args:
        path: the path of the file.
        config: a file, or a mapping, with sections that override those of the file.
        parameters_file: a file of parameters that override those of the pipeline.
        params: parameters that override those of all files.
    """
    model, problems = read(path, config, parameters_file, params)
    if not problems and model is not None:
        try:
            checked_dag(model)
        except PipelineError as error:
            return list(error.problems)
    return problems


def checked_dag(model: PipelineModel) -> DAG:
    """Return a DAG that Airflow does not load.

    Raises:
        PipelineError: Airflow refuses the DAG.
    """
    try:
        dag = dag_from_model(model, auto_register=False)
        _check(dag)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError([_unexpected(Path(model.file), error)]) from error
    return dag


def _check(dag: DAG) -> None:
    dag.validate()  # type: ignore[no-untyped-call]  # of Airflow
    dag.check_cycle()


class WrongPipeline(DAG):
    """Stands for a file that is not a valid pipeline, so that Airflow reports an import error of this file.

    Airflow records an error of a module for all DAGs of that module and makes them stale. An error of serialization it
    records for the file that the DAG names. A `DagBag` without a bundle, as in tests of DAGs, serializes nothing: there
    the error is one of the module, whose other DAGs stay in the bag.

    Args:
        path: the path of the file.
        error: its problems.
    """

    def __init__(self, path: Path, error: PipelineError) -> None:
        # The name of the file has a dot, the ids of the other DAGs of the folder may have it, too.
        super().__init__(f"{dag_id_of(path.name)}.invalid", schedule=None)
        self.path = path
        self.error = error

    def validate(self) -> None:
        """Name the file as the place of the error; in a `DagBag` without a bundle raise the error."""
        module = Path(self.relative_fileloc or "/")
        if module.is_absolute():
            raise self.error
        bundle = Path(self.fileloc).parents[len(module.parts) - 1]
        self.fileloc = str(self.path)
        self.relative_fileloc = os.path.relpath(self.path, bundle)

    def get_serialized_fields(self) -> frozenset[str]:  # type: ignore[override]  # a class method there
        """Raise the error."""
        raise self.error


def _unexpected(path: Path, error: Exception) -> Problem:
    return Problem(f"cannot become a DAG: {type(error).__name__}: {error}", Place(str(path)))


_TOP_KEY = re.compile(r"""^["']?(dag|name|<<)["']?[ \t]*:""", re.MULTILINE)


def _may_have_dag(path: Path, wanted: str | None) -> bool:
    """Return whether a file may be the one of this DAG, or of any DAG for None. Reads only its first-level lines."""
    try:
        text = read_text(path)
    except (OSError, ValueError):
        # Reported when the file is read.
        return wanted is None or dag_id_of(path.stem) == wanted
    if "dag:" not in text:
        return False
    lines = {found.group(1): text[found.start() :].split("\n", 2)[:2] for found in _TOP_KEY.finditer(text)}
    if wanted is None or "dag" not in lines or "<<" in lines or text.lstrip().startswith("{"):
        return True
    if "name" not in lines:
        return dag_id_of(path.stem) == wanted
    line, *after = lines["name"]
    try:
        (name,) = yaml.safe_load(line).values()
    except (yaml.YAMLError, AttributeError, ValueError):
        return True
    # An indented line continues the name.
    is_whole = isinstance(name, str) and not "".join(after).startswith((" ", "\t"))
    return not is_whole or dag_id_of(name) == wanted


def _folder_of_caller(namespace: Mapping[str, Any]) -> Path:
    file = namespace.get("__file__")
    return Path(file).resolve().parent if file else Path.cwd()


def dag_from_model(
    model: PipelineModel,
    dag_id: str | None = None,
    *,
    launch_conn_id: str | None = None,
    params: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Return the DAG of a pipeline; arguments as in `dag_from_file`."""
    if unknown := [name for name in dag_kwargs if name in _COUNTERPARTS]:
        raise TypeError(f"{unknown[0]!r} is not an argument; here it is {_COUNTERPARTS[unknown[0]]}")
    if launch_conn_id is not None:
        config = {"conn_id": launch_conn_id, **model.executor.config}
        model = replace(model, executor=replace(model.executor, config=config))
    values = {**model.parameters, **parameters.from_environment(), **(params or {})}
    # Parameters of the DAG count as declared, as those of the file do.
    model = replace(model, parameters={name: _initial(value) for name, value in values.items()})
    settings: dict[str, Any] = {"catchup": False}
    if model.graph.description:
        settings["description"] = model.graph.description
    limit = task_limit(model)
    if limit is not None:
        settings["max_active_tasks"] = limit
    schedule = dag_kwargs.pop("schedule", None)
    settings |= dag_kwargs
    auto_register = settings.pop("auto_register", True)
    dag = DAG(
        dag_id or dag_id_of(model.name), schedule=schedule, params=_params(values), auto_register=False, **settings
    )
    with dag:
        Renderer(model).graph(model.graph, Scope(), ())
    # Only now, because Airflow would load a DAG of which an error left a part.
    dag.auto_register = auto_register
    with dag:
        return dag


def _initial(value: Any) -> Any:
    if not isinstance(value, Param):
        return value
    return value.value if value.has_value else None


def _params(values: Mapping[str, Any]) -> dict[str, Param]:
    # A whole number in the file is often the first value of one that is not: `lr: 1`.
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return {
        name: value
        if isinstance(value, Param)
        else Param(value, type=["null", kinds[type(value)]])
        if type(value) in kinds
        else Param(value)
        for name, value in values.items()
    }
