"""The documentation of a DAG that was made from files: their texts, with secrets masked.

Airflow's Code tab shows the file that Airflow imports, which is the Python file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from airflow_provider_launch.pipelines.document import read_text
from airflow_provider_launch.pipelines.model import PipelineModel, steps_of
from airflow_provider_launch.specs.secret_names import is_secret_name
from airflow_provider_launch.specs.secrets import MASK, hidden_in_text, masked_args, masked_text

LARGEST_SHOWN = 64 * 1024
"""Characters of a file that are shown, because the DAG with its documentation is a row of Airflow's database."""
_NAMES_ONLY = "secrets"
"""The field of a step whose values name secrets."""
_DATA = "parameters"
"""The field below which names have no meaning for a pipeline."""
Part = tuple[yaml.Node, str, bool]
"""An item, key or value; the text in its place, if it is a secret; whether it is below the field with data."""
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
        text = read_text(path)
        # Masking takes longer for larger files.
        text = masked_yaml(text) if len(text) <= LARGEST_SHOWN else text
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
    waiting = [] if root is None else [(root, False)]
    seen = set()
    while waiting:
        node, is_data = waiting.pop()
        # An alias is the node of its anchor.
        if id(node) in seen:
            continue
        seen.add(id(node))
        start, end = node.start_mark.index, node.end_mark.index
        if _is_text(node):
            scalars.append((start, end))
            masked, read = masked_text(text[start:end]), masked_text(node.value)
            if read.count(MASK) > masked.count(MASK) or any(part in masked for part in hidden_in_text(node.value)):
                # Quotes and line ends in it are written in another way.
                masked = json.dumps(read, ensure_ascii=False) + _space_at_end(text[start:end])
            if masked != text[start:end]:
                yield start, end, masked
            continue
        is_list = isinstance(node, yaml.SequenceNode)
        for part, masked, is_below in (_items if is_list else _values)(node, is_data):
            if not masked:
                waiting.append((part, is_below))
            else:
                seen.add(id(part))
                begin, stop = part.start_mark.index, part.end_mark.index
                yield begin, stop, masked + _space_at_end(text[begin:stop])


def _space_at_end(text: str) -> str:
    """Return the space that belongs to a node, such as a block."""
    return text[len(text.rstrip()) :]


def _items(node: yaml.Node, is_data: bool) -> Iterator[Part]:
    """Yield the parts of a list, also with masks for arguments such as the one after `--password`."""
    texts = [item.value for item in node.value if _is_text(item)]
    shown = iter(masked_args(texts))
    for item in node.value:
        masked = next(shown) if _is_text(item) else ""
        yield item, "" if not masked or masked == masked_text(item.value) else masked, is_data


def _values(node: yaml.Node, is_data: bool) -> Iterator[Part]:
    own = next((value.value for key, value in node.value if key.value in ("name", "Name", "key", "Key")), "")
    for key, value in node.value:
        yield key, "", is_data
        # `{name: PASSWORD, value: x}` is the form of variables in a pod.
        name = own if key.value in ("value", "Value") else key.value
        if key.value == _NAMES_ONLY and not _is_text(value) and not is_data:
            for part in value.value:
                yield from ((each, "", False) for each in (part if isinstance(part, tuple) else (part,)))
        else:
            is_secret = isinstance(name, str) and is_secret_name(name) and value.value
            yield value, MASK if is_secret else "", is_data or key.value == _DATA


def _is_text(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _comments(text: str, scalars: list[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """Yield the comments with secrets: those of values that were commented out, too."""
    at = 0
    for start, end in [*scalars, (len(text), len(text))]:
        # A `#` between two scalars begins a comment.
        for found in _COMMENT.finditer(text, at, max(at, start)):
            if (masked := masked_text(found[1])) != found[1]:
                yield *found.span(1), masked
        at = max(at, end)
