"""Runs a function or a notebook inside an app. Standard library only, because images may lack this package.

    program.py function MODULE.FUNCTION [NAME ...]
    program.py notebook PATH OUTPUT_PATH OUTPUT_TAG [NAME ...]

Parameters are read from LAUNCH_PARAMETERS, a JSON object, or from its parts LAUNCH_PARAMETERS_0, _1 and so on. The
result is written to LAUNCH_RESULT_PATH. NAME selects the values to return; without names all are returned.
LAUNCH_IN_DATA_DIR: the current folder holds files of other steps.
LAUNCH_DECLARED: names of the parameters that become variables of a notebook; without it all do.
"""

from __future__ import annotations

import os
import sys

# Python puts the folder of a script first, where our modules would hide those of the standard library.
if sys.path and os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(sys.argv[0])):
    del sys.path[0]

import contextlib
import importlib
import inspect
import json
import keyword
import shutil
import tempfile
import typing


LIMIT = 4096  # bytes of a result


def main(arguments: list[str]) -> None:
    # An earlier step may have left a module of any name among the files of this one.
    is_data = bool(os.environ.get("LAUNCH_IN_DATA_DIR"))
    here = os.path.realpath(os.getcwd())
    sys.path[:] = [path for path in sys.path if not (is_data and os.path.realpath(path) == here)]
    for folder in ("" if is_data else os.getcwd(), os.environ.get("LAUNCH_CODE_DIR")):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    parameters = json.loads(os.environ.get("LAUNCH_PARAMETERS") or joined("LAUNCH_PARAMETERS") or "{}")
    if arguments[0] == "function":
        values = call_function(arguments[1], parameters, arguments[2:])
    else:
        path, output_path, tag = arguments[1:4]
        with scratch_folder() as scratch:
            values = run_notebook(path, output_path, tag, parameters, arguments[4:], scratch)
    write_result(values, is_declared=arguments[0] == "notebook" or bool(arguments[2:]))


def joined(name: str) -> str:
    """Return the text of a variable that was too large for one: NAME_0, NAME_1 and so on."""
    parts: list[str] = []
    while "%s_%d" % (name, len(parts)) in os.environ:
        parts.append(os.environ["%s_%d" % (name, len(parts))])
    return "".join(parts)


def write_result(values: dict[str, typing.Any], is_declared: bool = True) -> None:
    path = os.environ.get("LAUNCH_RESULT_PATH")
    if not values or not path:
        return
    try:
        text = json.dumps(values)
    except (TypeError, ValueError) as error:
        if not is_declared:
            ignored("values, which are not JSON (%s)" % error)
            return
        sys.exit("the returned values must be JSON (text, numbers, lists, dicts): %s" % error)
    if not is_declared and len(text.encode()) > LIMIT:
        ignored("values of %d bytes" % len(text.encode()))
        return
    with open(path, "w") as file:
        file.write(text)


def ignored(what: str) -> None:
    """Say that a value was dropped: the work is done, so a value that no `returns` names must not fail the step."""
    sys.stdout.write("ignored the returned %s, because the step has no 'returns'\n" % what)


def call_function(name: str, parameters: dict[str, typing.Any], names: list[str]) -> dict[str, typing.Any]:
    module_name, _, function_name = name.rpartition(".")
    function = getattr(importlib.import_module(module_name), function_name)
    given = arguments_of(function, parameters)
    result = function(**given)
    if inspect.iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    return values_of(result, names)


def arguments_of(function: typing.Any, parameters: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Return the arguments by name, converted by their annotations."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:
        hints = {}
    given: dict[str, typing.Any] = {}
    missing: list[str] = []
    expected = inspect.signature(function).parameters
    for name, parameter in expected.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update({key: value for key, value in parameters.items() if key not in expected})
        elif hints.get(name) is not None and getattr(hints[name], "__module__", "") == "argparse":
            given[name] = hints[name](**parameters)
        elif name in parameters:
            given[name] = cast(parameters[name], hints.get(name))
        elif parameter.default is parameter.empty:
            missing.append(name)
    if missing:
        known = ", ".join(sorted(parameters)) or "none"
        sys.exit("the function needs %s, which no parameter gives; there are %s" % (", ".join(missing), known))
    return given


def cast(value: typing.Any, hint: typing.Any) -> typing.Any:
    """Convert a value to its annotation, with pydantic if installed, else for plain types."""
    if hint is None or hint is typing.Any:
        return value
    try:
        from pydantic import TypeAdapter
    except ImportError:
        plain = hint in (int, float, str, bool) and not isinstance(value, hint) and value is not None
        return hint(value) if plain else value
    try:
        adapter = TypeAdapter(hint)
    except Exception:
        return value
    return adapter.validate_python(value)


def plain(value: typing.Any) -> typing.Any:
    """Return a pydantic model or a dataclass as a dict."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__dataclass_fields__"):
        import dataclasses

        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    # NumPy numbers and similar.
    return value.item() if hasattr(value, "item") and callable(value.item) else value


def values_of(result: typing.Any, names: list[str]) -> dict[str, typing.Any]:
    """Return the result of a function as values by name."""
    if result is None:
        if names:
            sys.exit("the function returned nothing, but 'returns' names %s" % ", ".join(names))
        return {}
    if names:
        if isinstance(result, tuple) and len(names) > 1:
            if len(result) != len(names):
                sys.exit("the function returned %d values, 'returns' names %d" % (len(result), len(names)))
            return {name: plain(value) for name, value in zip(names, result)}
        if len(names) == 1 and not (isinstance(result, dict) and names[0] in result):
            return {names[0]: plain(result[0] if isinstance(result, tuple) and len(result) == 1 else result)}
    # The fields of a model are returned one by one.
    if hasattr(result, "model_fields_set") or hasattr(result, "__dataclass_fields__"):
        fields = getattr(type(result), "model_fields", None) or result.__dataclass_fields__
        values = {name: plain(getattr(result, name)) for name in fields}
    else:
        values = plain(result)
    if not isinstance(values, dict):
        ignored(type(result).__name__)
        return {}
    return {name: values[name] for name in names if name in values} if names else values


@contextlib.contextmanager
def scratch_folder() -> typing.Iterator[str]:
    """Yield an empty folder of this attempt, because others may run in the current folder at the same time."""
    # That of the result is removed with the app; a process that is killed leaves a folder in /tmp for ever.
    beside = os.path.dirname(os.environ.get("LAUNCH_RESULT_PATH") or "")
    parent = beside if beside and not beside.startswith("/dev") and os.access(beside, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="notebook-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_notebook(
    path: str, output_path: str, tag: str, parameters: dict[str, typing.Any], names: list[str], scratch: str
) -> dict[str, typing.Any]:
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as error:
        sys.exit(
            "a notebook needs nbclient, nbformat and ipykernel where it runs: pip install "
            "'airflow-provider-launch[notebooks]' (%s)" % error
        )
    if not os.path.isabs(path):
        path = os.path.join(os.environ.get("LAUNCH_CODE_DIR") or os.getcwd(), path)
    read: typing.Any = nbformat.read
    notebook = read(path, as_version=4)
    cells = notebook.cells
    tagged = [at for at, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
    declared = json.loads(os.environ.get("LAUNCH_DECLARED") or json.dumps([*parameters]))
    first = "\n".join(
        "%s = %r" % (name, value)
        for name, value in parameters.items()
        # Other names were chosen by programs of earlier steps, and could replace any name of the notebook.
        if name in declared and name.isidentifier() and not keyword.iskeyword(name)
    )
    new_cell: typing.Any = nbformat.v4.new_code_cell
    cells.insert(tagged[0] + 1 if tagged else 0, new_cell(first))
    target = os.path.join(scratch, "values.json")
    wanted = names or []
    if tag:
        source = [cell for cell in cells if tag in cell.metadata.get("tags", [])]
        if not source:
            sys.exit("no cell of the notebook has the tag %r" % tag)
        lines = source[0].source.rstrip().splitlines()
        lines[-1] = "_launch_values = " + lines[-1].strip()
        source[0].source = "\n".join(lines)
    else:
        cells.append(new_cell("_launch_values = {name: globals()[name] for name in %r if name in globals()}" % wanted))
    cells.append(
        new_cell("import json as _launch_json\nopen(%r, 'w').write(_launch_json.dumps(_launch_values))" % target)
    )
    # Jupyter would keep the address of the kernel below the home folder.
    os.environ.setdefault("JUPYTER_RUNTIME_DIR", scratch)
    # The kernel imports modules from its start folder, and later from the current one.
    start = os.environ.get("LAUNCH_CODE_DIR") or (scratch if os.environ.get("LAUNCH_IN_DATA_DIR") else os.getcwd())
    enter = "import os, sys\nsys.path[:] = [path or %r for path in sys.path]\nos.chdir(%r)\ndel os, sys"
    cells.insert(0, new_cell(enter % (start, os.getcwd())))
    try:
        NotebookClient(notebook, timeout=None, resources={"metadata": {"path": start}}).execute()
    finally:
        del cells[0]
        if output_path:
            write: typing.Any = nbformat.write
            write(notebook, output_path)
    for cell in cells:
        for output in cell.get("outputs", []):
            if output.get("output_type") == "stream":
                sys.stdout.write(output["text"])
    with open(target) as file:
        values = json.load(file)
    return {name: values[name] for name in wanted if name in values} if wanted else values


if __name__ == "__main__":
    main(sys.argv[1:])
