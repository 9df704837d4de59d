"""Reads and checks a whole pipeline: returns the model or all problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_launch.pipelines.checks import find_problems
from airflow_provider_launch.pipelines.model import PipelineModel
from airflow_provider_launch.pipelines.parameters import from_environment
from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.reader import read_document, read_file, read_parameters

Config = str | Path | Mapping[str, Any]


def load(
    path: str | Path,
    config: Config | None = None,
    *,
    parameters_file: str | Path | None = None,
    params: Mapping[str, Any] | None = None,
) -> PipelineModel:
    """Return the pipeline that a file describes. Does not import Airflow.

    Args:
        path: the path of the file.
        config: a file, or a mapping, with sections that override those of the file.
        parameters_file: a file of parameters that override those of the pipeline and of the environment.
        params: parameters that override those of all files.

    Raises:
        PipelineError: with all problems of the file.
    """
    model, problems = read(path, config, parameters_file, params)
    if problems or model is None:
        raise PipelineError(problems)
    return model


def load_document(
    data: Mapping[str, Any],
    folder: Path,
    name: str,
    params: Mapping[str, Any] | None = None,
    config: Config | None = None,
    parameters_file: str | Path | None = None,
) -> PipelineModel:
    """Return the pipeline that a document made in Python describes.

    Args:
        data: the document.
        folder: the folder to which its paths are relative.
        name: the name of the pipeline.
        params: parameters that override those of the document.
        config: as in `load`.
        parameters_file: as in `load`.

    Raises:
        PipelineError: with all problems.
    """
    model, problems = read_document(data, folder, name, Path(config) if isinstance(config, str) else config)
    more, wrong = read_parameters(Path(parameters_file)) if parameters_file is not None else ({}, [])
    problems = [*problems, *wrong]
    if model is not None:
        model = replace(model, parameters={**model.parameters, **more, **from_environment(), **(params or {})})
        problems = problems or find_problems(model)
    if problems or model is None:
        raise PipelineError(problems)
    return model


def read(
    path: str | Path,
    config: Config | None,
    parameters_file: str | Path | None,
    params: Mapping[str, Any] | None,
) -> tuple[PipelineModel | None, list[Problem]]:
    """Return the model, None if it could not be read, and all problems; arguments are those of `load`."""
    model, problems = read_file(Path(path), Path(config) if isinstance(config, str) else config)
    more, wrong = read_parameters(Path(parameters_file)) if parameters_file is not None else ({}, [])
    problems = [*problems, *wrong]
    if model is not None:
        values = {**model.parameters, **more, **from_environment(), **(params or {})}
        model = replace(model, parameters=values)
        # A step with an invalid field is missing from the model; do not report it a second time as missing.
        found = find_problems(model)
        problems = [*problems, *(problem for problem in found if not _follows(problem, problems))]
    return model, sorted(dict.fromkeys(problems), key=lambda problem: (problem.place.file, problem.line))


def _follows(problem: Problem, problems: list[Problem]) -> bool:
    """Return whether a problem is only a consequence of a step that could not be read."""
    unread = {other.step.rpartition(" / ")[2] for other in problems if other.step}
    is_consequence = any(f"{name!r}, which does not exist" in problem.text for name in unread)
    return is_consequence or (bool(unread) and "no way to a success" in problem.text)
