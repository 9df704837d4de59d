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
from airflow_provider_launch.specs.secrets import MASK, is_secret_name, masked_args, masked_text

LARGEST_SHOWN = 64 * 1024
"""Characters of a file that are shown, because the DAG with its documentation is a row of Airflow's database."""
_NAMES_ONLY = "secrets"
"""The field of a step whose values name secrets."""
_COMMENT = re.compile(r"#[# \t-]*([^\n]*)")


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
    """Return the text with `***` for the values of secret-looking keys and flags, and for secrets inside others."""
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    scalars: list[tuple[int, int]] = []
    found = [*_replacements(root, text, scalars)]
    found += _comments(text, sorted(scalars))
    done = 0
    parts = []
    for start, end, shown in sorted(found):
        # The value of a secret has no other replacements, but an alias leads to one twice.
        if start >= done:
            parts += [text[done:start], shown]
            done = end
    return "".join([*parts, text[done:]])


def _replacements(root: yaml.Node | None, text: str, scalars: list[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and new text of the parts with secrets, and add the span of each scalar to a list."""
    waiting = [] if root is None else [root]
    seen = set()
    while waiting:
        node = waiting.pop()
        # An alias is the node of its anchor.
        if id(node) in seen:
            continue
        seen.add(id(node))
        start, end = node.start_mark.index, node.end_mark.index
        if _is_text(node):
            scalars.append((start, end))
            if (masked := masked_text(text[start:end])) != text[start:end]:
                yield start, end, masked
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
            texts = [item.value for item in node.value if _is_text(item)]
            # Also the value after a flag such as `--password`.
            for item, masked in zip(
                node.value, masked_args(texts) if len(texts) == len(node.value) else (), strict=False
            ):
                if masked != masked_text(item.value):
                    seen.add(id(item))
                    yield item.start_mark.index, item.end_mark.index, f"{masked}{_space_after(item, text)}"
        else:
            own = next((value.value for key, value in node.value if key.value == "name"), "")
            for key, value in node.value:
                waiting.append(key)
                # `{name: PASSWORD, value: x}` is the form of variables in a pod.
                name = own if key.value == "value" and isinstance(own, str) else key.value
                if key.value == _NAMES_ONLY:
                    names = [value] if _is_text(value) else _members(value)
                    scalars += [(each.start_mark.index, each.end_mark.index) for each in names if _is_text(each)]
                    waiting += [each for each in names if not _is_text(each)]
                elif isinstance(name, str) and is_secret_name(name) and value.value:
                    yield value.start_mark.index, value.end_mark.index, f"{MASK}{_space_after(value, text)}"
                else:
                    waiting.append(value)


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _members(node: yaml.Node) -> list[yaml.Node]:
    """Return the nodes in a list or mapping, and the keys of a mapping."""
    return [part for each in node.value for part in (each if isinstance(each, tuple) else (each,))]


def _space_after(node: yaml.Node, text: str) -> str:
    """Return the space at the end of a node, such as that of a block."""
    found = re.search(r"\s*\Z", text[node.start_mark.index : node.end_mark.index])
    return found[0] if found else ""


def _comments(text: str, scalars: list[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield the comments with secrets: those of values that were commented out, too."""
    at = 0
    for start, end in [*scalars, (len(text), len(text))]:
        # A `#` between two scalars begins a comment.
        for found in _COMMENT.finditer(text, at, max(at, start)):
            if (masked := masked_text(found[1])) != found[1]:
                yield *found.span(1), masked
        at = max(at, end)
