"""Pipelines in Python: the same steps as in a file, checked and rendered the same way.

from airflow_provider_launch.pipelines import Map, Pipeline, Task

pipeline = Pipeline(
    "count",
    steps=[
        Task("split", shell="...", returns=["parts"]),
        Map("count", iterate_on="parts", iterate_as="part", branch=[Task("one", shell="...")]),
    ],
)
dag = pipeline.dag()
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_launch.pipelines.from_runnable import steps_of
from airflow_provider_launch.pipelines.model import PipelineModel
from airflow_provider_launch.pipelines.problems import PipelineError, Problem
from airflow_provider_launch.pipelines.steps import Step, graph

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_provider_launch.pipelines.validation import Config


class Pipeline:
    """Steps in order, with the settings that all of them share.

    Args:
        name: the name of the DAG.
        steps: in order; each is followed by the next one unless it has its own `next`, the last by a success.
        start_at: the first step, if it is not the first of the list.
        executor: a type, or `{"type": ..., "config": {...}}`, as in a file.
        parameters: their names and default values.
        catalog: where files are kept.
        description: the description of the DAG.
    """

    def __init__(
        self,
        name: str,
        *,
        steps: Sequence[Step],
        start_at: Step | str | None = None,
        executor: str | Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        catalog: str | Mapping[str, Any] | None = None,
        description: str = "",
    ) -> None:
        self.name = name
        self.steps = list(steps)
        self.start_at = start_at
        self.executor = executor
        self.parameters = dict(parameters or {})
        self.catalog = catalog
        self.description = description
        file = sys._getframe(1).f_globals.get("__file__")  # noqa: SLF001 - files are relative to the caller
        self.folder = Path(file).resolve().parent if file else Path.cwd()

    @classmethod
    def from_runnable(cls, source: Any, name: str = "", **kwargs: Any) -> Pipeline:
        """Return the pipeline that was made with the SDK of runnable; a job becomes a pipeline of one task.

        Args:
            source: a `runnable.Pipeline`, `AsyncPipeline`, `PythonJob`, `NotebookJob` or `ShellJob`.
            name: of the DAG. Default: its own name.
            kwargs: arguments of `Pipeline`, such as `executor` and `parameters`.

        Raises:
            PipelineError: with all steps that have no counterpart, such as loops.
        """
        name = name or getattr(source, "name", "")
        if not name:
            raise PipelineError([Problem("the pipeline has no name; pass one: from_runnable(pipeline, 'my_dag')")])
        kwargs.setdefault("description", getattr(source, "description", ""))
        pipeline = cls(name, steps=steps_of(source), **kwargs)
        # Functions and notebooks of runnable are found from the folder where its script is.
        file = sys._getframe(1).f_globals.get("__file__")  # noqa: SLF001 - files are relative to the caller
        pipeline.folder = Path(file).resolve().parent if file else Path.cwd()
        return pipeline

    def document(self) -> dict[str, Any]:
        """Return the pipeline as it would be written in a file."""
        found: dict[str, Any] = {"name": self.name, "dag": self.graph()}
        for key in ("executor", "parameters", "catalog"):
            value = getattr(self, key)
            if value:
                found[key] = value
        return found

    def graph(self) -> dict[str, Any]:
        """Return the steps as they would be written in a file."""
        found = graph(self.steps, self.start_at)
        return {**found, "description": self.description} if self.description else found

    def validate(self) -> list[Problem]:
        """Return all problems of the pipeline."""
        from airflow_provider_launch.pipelines.dags import checked_dag

        try:
            checked_dag(self.model())
        except PipelineError as error:
            return list(error.problems)
        return []

    def model(
        self,
        params: Mapping[str, Any] | None = None,
        *,
        parameters_file: str | Path | None = None,
        config: Config | None = None,
    ) -> PipelineModel:
        """Return the checked model; arguments as in `dag`.

        Raises:
            PipelineError: with all problems.
        """
        from airflow_provider_launch.pipelines.validation import load_document

        if isinstance(config, (str, Path)):
            config = self.folder / config
        if parameters_file is not None:
            parameters_file = self.folder / parameters_file
        return load_document(self.document(), self.folder, self.name, params, config, parameters_file)

    def dag(
        self,
        dag_id: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        parameters_file: str | Path | None = None,
        config: Config | None = None,
        **kwargs: Any,
    ) -> DAG:
        """Return the DAG; arguments are those of `dag_from_file`, and paths are relative to the caller's file.

        Raises:
            PipelineError: with all problems.
            TypeError: an argument has another name here; the text has the name.
        """
        from airflow_provider_launch.pipelines.dags import dag_from_model

        model = self.model(params, parameters_file=parameters_file, config=config)
        return dag_from_model(model, dag_id, params=params, **kwargs)
