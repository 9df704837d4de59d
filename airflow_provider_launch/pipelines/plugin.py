"""Plug-in executors: a class that runs one task at a time, as in magnus.

An executor that submits each task to a queue::

    class QueueExecutor(BaseExecutor):
        service_name = "queue"

        class Config(BaseExecutor.Config):
            queue: str

        def trigger_job(self, node, map_variable=None, **kwargs):
            job = my_queue.submit(node.command_line, env=node.environment, queue=self.config.queue)
            return my_queue.wait(job)     # a mapping holds the returned values

Register it as an entry point in the group `airflow_provider_launch.executors`; its name is the `type` in files.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from airflow_provider_launch.pipelines.executors import PLUGINS_GROUP
from airflow_provider_launch.schedulers.logs import LONGEST_LINE
from airflow_provider_launch.specs.errors import InvalidAppError
from airflow_provider_launch.util.entrypoints import load
from airflow_provider_launch.util.untrusted import clean_text

__all__ = ["BaseExecutor", "Node", "NodeFailedError", "load_executor"]

# Airflow does this work itself: these methods are never called.
_BY_AIRFLOW = (
    "prepare_for_graph_execution", "execute_graph", "execute_from_graph", "send_return_code",
    "_is_eligible_for_rerun", "_set_up_run_log", "_sync_catalog",
)  # fmt: skip


class NodeFailedError(Exception):
    """A task ran and failed."""


@dataclass
class Node:
    """One task, as passed to an executor."""

    name: str
    internal_name: str
    """The name with those of its enclosing steps, joined by dots."""
    command: str
    command_type: str
    command_line: list[str]
    """The program and its arguments. It does not need this package."""
    environment: dict[str, str]
    """Environment variables of the task, including parameters."""
    working_dir: str
    config: dict[str, Any] = field(default_factory=dict)
    """Resolved settings of the executor for this task."""
    node_type: str = "task"
    show: Callable[[str], object] = print
    mask_unfinished: Callable[[str], str] = str
    """Masks a line that the program did not finish: it may end within a secret. Call it before `show`."""
    process: subprocess.Popen[bytes] | None = None

    def execute(self, **_: Any) -> dict[str, Any]:
        """Run the task on this host, show its lines, and return its result.

        Raises:
            NodeFailedError: its exit code is not 0.
            InvalidAppError: its result is larger than 4 KB, not a JSON object, or not in a regular file.
        """
        from airflow_provider_launch.schedulers.environment import inherited_env
        from airflow_provider_launch.schedulers.local.request import INHERITED

        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder, "result.json")
            env = {**inherited_env(os.environ, INHERITED), **self.environment, "LAUNCH_RESULT_PATH": str(result)}
            self.process = subprocess.Popen(
                self.command_line,
                env=env,
                cwd=self.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert self.process.stdout is not None
            with self.process.stdout as lines:
                # Long lines are read in parts, and may contain invalid UTF-8.
                while line := lines.readline(LONGEST_LINE):
                    text = clean_text(line.decode("utf-8", "replace").rstrip("\r\n"))
                    self.show(text if line.endswith(b"\n") else self.mask_unfinished(text))
            if code := self.process.wait():
                raise NodeFailedError(f"step {self.name!r} exited with code {code}")
            return self._result(str(result))

    def _result(self, path: str) -> dict[str, Any]:
        from airflow_provider_launch.schedulers.local.safe_files import NotRegularError, open_regular
        from airflow_provider_launch.schedulers.result_document import RESULT_LIMIT_BYTES, parse_result

        try:
            with open_regular(path) as file:
                found = parse_result(file.read(RESULT_LIMIT_BYTES), os.fstat(file.fileno()).st_size)
        except FileNotFoundError:
            return {}
        except NotRegularError as error:
            raise InvalidAppError(
                f"step {self.name!r} wrote its result into something that is not a regular file"
            ) from error
        if found is not None and not isinstance(found, dict):
            raise InvalidAppError(f"step {self.name!r} returned something other than a JSON object of names and values")
        return found or {}

    def kill(self) -> None:
        """End the process of `execute` and all processes that it started."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)


class BaseExecutor:
    """Runs tasks; subclasses override `trigger_job`, or `execute_node`, and declare their settings in `Config`."""

    service_name = ""
    service_type = "executor"

    class Config(BaseModel):
        """Settings; undeclared names are refused."""

        model_config = ConfigDict(extra="forbid")

        enable_parallel: bool = False
        placeholders: dict[str, Any] = {}

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = self.Config(**(config or {}))

    def prepare_for_node_execution(self) -> None:
        """Prepare for one task; called on the worker."""

    def trigger_job(self, node: Node, map_variable: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """Run a task to its end. A returned mapping holds the values that the task returns.

        Args:
            node: the task.
            map_variable: the element of each enclosing map, by name.
            kwargs: for future arguments.

        Raises:
            Exception: the task has failed.
        """
        return self.execute_node(node, map_variable, **kwargs)

    def execute_node(self, node: Node, map_variable: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
        """Run a task on this host; the default of `trigger_job`."""
        del map_variable
        return node.execute(**kwargs)

    def add_code_identities(self, node: Node, **_: Any) -> list[Mapping[str, Any]]:
        """Return further identities of the code of a task, with `type`, `identifier` and `dependable`."""
        del node
        return []

    def cancel(self, node: Node) -> None:
        """End a task that was killed."""
        node.kill()

    def _resolve_node_config(self, node: Node) -> dict[str, Any]:
        """Return the settings of a task, which are already resolved."""
        return node.config


def load_executor(name: str, config: Mapping[str, Any], warn: Callable[[str], object]) -> BaseExecutor:
    """Return a plug-in executor.

    Raises:
        InvalidAppError: it cannot be loaded, is not an executor, or refuses a setting.
    """
    try:
        cls = load(PLUGINS_GROUP, name)
    except Exception as error:
        raise InvalidAppError(f"executor {name!r} of a plug-in cannot be loaded: {error}") from error
    if not (isinstance(cls, type) and callable(getattr(cls, "trigger_job", None))):
        raise InvalidAppError(f"executor {name!r} must be a class with 'trigger_job', such as a BaseExecutor")
    unused = [method for method in _BY_AIRFLOW if method in vars(cls)]
    if unused:
        warn(f"executor {name!r} has {', '.join(unused)}, but Airflow does this work itself; they are not called")
    try:
        executor: BaseExecutor = cls(dict(config))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise InvalidAppError(f"executor {name!r} refuses its config: {wrong}") from error
    return executor
