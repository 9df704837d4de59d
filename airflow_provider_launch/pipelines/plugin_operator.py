"""The operator of pipeline tasks whose executor is a plug-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_provider_launch.pipelines.step_operator import StepOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_launch.pipelines.plugin import BaseExecutor, Node


class PluginStepOperator(StepOperator):
    """Runs one task of a pipeline by a plug-in executor; arguments as in `StepOperator`."""

    template_fields: Sequence[str] = ("command", "step_args", "env", "cfg")
    ui_color = "#e6e0f2"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._executor: BaseExecutor | None = None
        self._node: Node | None = None
        self._masked: list[str] = []

    def _launched(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - used by the base class
        from airflow_provider_launch._task.errors import final_errors
        from airflow_provider_launch._task.places import hidden_values, places_of
        from airflow_provider_launch._task.secrets import register
        from airflow_provider_launch.pipelines.plugin import load_executor
        from airflow_provider_launch.schedulers.ids import slug
        from airflow_provider_launch.specs import AppDef

        elements = self._elements
        with final_errors():
            settings = {name: value for name, value in (self.place.options or {}).items() if name not in _OURS}
            self._executor = load_executor(self.place.type, settings, self.log.warning)
        self._node = self._make_node(settings)
        assert isinstance(self.app, AppDef)
        # This process writes the lines itself, so it must mask secrets.
        values = hidden_values(self.app.roles, {}, places_of(self.app, self._file_secrets))
        self._masked = register(values, self.log.warning)
        self._executor.prepare_for_node_execution()
        if self._attempt is not None:
            self._attempt.add_code(self._executor.add_code_identities(self._node))
        result = self._executor.trigger_job(self._node, elements)
        if self._killed:
            raise AirflowException("the task was killed")
        return {
            "handle": f"{self.place.type}:{slug(self._node.internal_name, 60)}",
            "state": "SUCCEEDED",
            "attempts": 1,
            "roles": {},
            "result": result if isinstance(result, Mapping) else None,
        }

    def _make_node(self, settings: dict[str, Any]) -> Node:
        from airflow_provider_launch._task.secrets import hidden
        from airflow_provider_launch.pipelines.plugin import Node
        from airflow_provider_launch.specs import AppDef, macros

        assert isinstance(self.app, AppDef)
        role = self.app.roles[0]
        values = macros.Values(img_root=role.image, app_id=self.task_id, replica_id="0", rank0_env="TORCHX_RANK0_HOST")
        return Node(
            name=self.step.name,
            internal_name=self.task_id,
            command=self.command,
            command_type=self.step.command_type,
            command_line=[role.entrypoint or "", *(values.substitute(text) for text in role.args)],
            environment={name: values.substitute(text) for name, text in role.env.items()},
            working_dir=role.image,
            config=settings,
            show=lambda line: self.log.info("%s", hidden(line, self._masked)),
            mask_unfinished=lambda line: hidden(line, self._masked, is_cut=True),
        )

    def on_kill(self) -> None:
        """Let the executor end the task."""
        self._killed = True
        if self._executor is not None and self._node is not None:
            self._executor.cancel(self._node)


_OURS = (
    "image",
    "env",
    "python",
    "shell",
    "shell_options",
    "code_dir",
    "data_dir",
    "data_volume",
    "mounts",
    "overrides",
    "patches",
)
"""Settings that shape the command line and are not passed to the executor."""
