"""Arguments of `dist.ddp` and `dist.spmd` that combine several values."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_launch.specs.named_resources import named_resources

__all__ = ["StructuredJArgument", "StructuredNameArgument"]


@dataclass
class StructuredNameArgument:
    """A name of the form `{experiment}/{run}`; each part is optional."""

    experiment_name: str
    run_name: str
    role_name: str = field(default="", compare=False)

    @staticmethod
    def parse_from(
        name: str, m: str | None = None, script: str | None = None, default_experiment_name: str = "default-experiment"
    ) -> StructuredNameArgument:
        """Return the parts of a name; the run defaults to the role, which is named after the program.

        Args:
            name: `experiment/run`, `experiment/`, `/run`, `run` or `/`.
            m: the main module.
            script: the main script, instead of `m`.
            default_experiment_name: the experiment of names without one.

        Raises:
            ValueError: both or none of `m` and `script` are given.
        """
        if not m and not script:
            raise ValueError("No main module or script specified; give one of `m` and `script`")
        if m and script:
            raise ValueError("Both main module and script set; give one of `m` and `script`")
        role = Path(script).stem if script else str(m).rpartition(".")[2]
        experiment, slash, run = name.rpartition("/")
        return StructuredNameArgument(
            experiment_name=(experiment if slash else "") or default_experiment_name,
            run_name=run or role,
            role_name=role,
        )

    def __str__(self) -> str:
        return f"{self.experiment_name}/{self.run_name}"


@dataclass
class StructuredJArgument:
    """Number of nodes and processes per node: `2x8`, or `2` to use one process per GPU."""

    nnodes: int
    nproc_per_node: int

    @staticmethod
    def parse_from(h: str, j: str) -> StructuredJArgument:
        """Return the number of nodes and of processes per node.

        Args:
            h: a named resource; if `j` has no processes, one is used for each GPU of `h`.
            j: `{nodes}` or `{nodes}x{processes}`.

        Raises:
            ValueError: `j` has another form, or `h` has no GPUs.
        """
        found = re.fullmatch(r"(?P<nodes>\d+)(x(?P<processes>\d+))?", j.strip())
        if found is None or int(found["nodes"]) < 1 or found["processes"] == "0":
            raise ValueError(f"Invalid format for `-j {j}`; use `{{nnodes}}` or `{{nnodes}}x{{nproc_per_node}}`")
        gpus = named_resources[h].gpu
        if found["processes"] is None:
            if gpus < 1:
                raise ValueError(
                    f"nproc_per_node cannot be inferred from GPU count. `{h}` is not a GPU instance. "
                    f"Use `-j {j}x{{nproc_per_node}}`"
                )
            return StructuredJArgument(int(found["nodes"]), gpus)
        processes = int(found["processes"])
        if gpus > 0 and processes != gpus:
            warnings.warn(f"`-j {j}` runs {processes} processes on each `{h}`, which has {gpus} GPUs", stacklevel=2)
        return StructuredJArgument(int(found["nodes"]), processes)

    def __str__(self) -> str:
        return f"{self.nnodes}x{self.nproc_per_node}"
