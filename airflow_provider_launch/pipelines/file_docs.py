"""The documentation of a DAG that was made from files: their texts, with secrets masked.

Airflow's Code tab shows the file that Airflow imports, which is the Python file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from airflow_provider_launch.pipelines.document import read_text
from airflow_provider_launch.pipelines.model import PipelineModel, steps_of
from airflow_provider_launch.specs.secrets import MASK, is_secret_name, masked_text

LARGEST_SHOWN = 64 * 1024
"""Characters of a file that are shown, because the DAG with its documentation is a row of Airflow's database."""
_NAMES_ONLY = "secrets"
"""The field of a step whose values name secrets."""


def docs_of_files(path: Path, model: PipelineModel) -> str:
    """Return a Markdown text with the file of a pipeline and those that it includes."""
    included = (Path(step.place.file) for step, _, _ in steps_of(model.graph))
    files = dict.fromkeys([path.resolve(), *(file.resolve() for file in included if file.is_absolute())])
    return "\n".join(_section(file, path.resolve().parent) for file in files)


def _section(path: Path, folder: Path) -> str:
    # No absolute path: it differs between hosts and versions of a bundle, and would make versions of the DAG.
    name = Path(os.path.relpath(path, folder)).as_posix()
    try:
        text = masked_yaml(read_text(path))
    except (OSError, ValueError, yaml.YAMLError) as error:
        # It changed after it was read, and the next parse reports that.
        return f"`{name}` cannot be shown: {type(error).__name__}\n"
    if len(text) > LARGEST_SHOWN:
        return f"`{name}` is too large to show ({len(text)} characters).\n"
    longest = max((len(run) for run in re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"`{name}`:\n\n{fence}yaml\n{text.rstrip()}\n{fence}\n"


def masked_yaml(text: str) -> str:
    """Return valid YAML with `***` for the values of secret-looking keys, and for secrets inside other values."""
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    done = 0
    parts = []
    for start, end, shown in sorted(_replacements(root, text)):
        # The value of a secret has no other replacements, but an alias leads to one twice.
        if start >= done:
            parts += [text[done:start], shown]
            done = end
    return "".join([*parts, text[done:]])


def _replacements(root: yaml.Node | None, text: str) -> Iterator[tuple[int, int, str]]:
    waiting = [] if root is None else [root]
    seen = set()
    while waiting:
        node = waiting.pop()
        # An alias is the node of its anchor.
        if id(node) in seen:
            continue
        seen.add(id(node))
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == _NAMES_ONLY:
                    continue
                if isinstance(key.value, str) and is_secret_name(key.value) and value.value:
                    space = re.search(r"\s*\Z", text[value.start_mark.index : value.end_mark.index])
                    yield value.start_mark.index, value.end_mark.index, f"{MASK}{space[0] if space else ''}"
                else:
                    waiting.append(value)
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif (masked := masked_text(text[start:end])) != text[start:end]:
            yield start, end, masked
