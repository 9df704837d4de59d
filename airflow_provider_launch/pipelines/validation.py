"""Reads and checks a whole pipeline: returns the model or all problems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_launch.pipelines.checks import find_problems
from airflow_provider_launch.pipelines.model import PipelineModel
from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.reader import read_document, read_file

Config = str | Path | Mapping[str, Any]


def validate(path: str | Path, config: Config | None = None) -> list[Problem]:
    """Return all problems of a file in the order of its lines; empty if it is valid.

    Args:
        path: of the file.
        config: a file, or a mapping, with sections that override those of the file.
    """
    return _read(path, config)[1]


def load(path: str | Path, config: Config | None = None) -> PipelineModel:
    """Return the pipeline that a file describes.

    Raises:
        PipelineError: with all problems of the file.
    """
    model, problems = _read(path, config)
    if problems or model is None:
        raise PipelineError(problems)
    return model


def load_document(data: Mapping[str, Any], folder: Path, name: str) -> PipelineModel:
    """Return the pipeline that a document made in Python describes.

    Raises:
        PipelineError: with all problems.
    """
    model, problems = read_document(data, folder, name)
    problems = problems or (find_problems(model) if model else [])
    if problems or model is None:
        raise PipelineError(problems)
    return model


def _read(path: str | Path, config: Config | None) -> tuple[PipelineModel | None, list[Problem]]:
    model, problems = read_file(Path(path), Path(config) if isinstance(config, str) else config)
    if model is not None:
        # A step with an invalid field is missing from the model; do not report it a second time as missing.
        found = find_problems(model)
        problems = [*problems, *(problem for problem in found if not _follows(problem, problems))]
    return model, sorted(dict.fromkeys(problems), key=lambda problem: (problem.place.file, problem.line))


def _follows(problem: Problem, problems: list[Problem]) -> bool:
    """Return whether a problem is only a consequence of a step that could not be read."""
    unread = {other.step.rpartition(" / ")[2] for other in problems if other.step}
    is_consequence = any(f"{name!r}, which does not exist" in problem.text for name in unread)
    return is_consequence or (bool(unread) and "no way to a success" in problem.text)
