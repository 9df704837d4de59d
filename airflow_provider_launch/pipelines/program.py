"""Runs a function or a notebook inside an app. Standard library only, because images may lack this package.

    program.py function MODULE.FUNCTION [NAME ...]
    program.py notebook PATH OUTPUT_PATH OUTPUT_TAG [NAME ...]

Parameters are read from LAUNCH_PARAMETERS, a JSON object, or from its parts LAUNCH_PARAMETERS_0, _1 and so on. The
result is written to LAUNCH_RESULT_PATH. NAME selects the values to return; without names all are returned.
LAUNCH_IN_DATA_DIR: the current folder holds files of other steps.
LAUNCH_OBJECTS: a JSON object with the folder of pickles, the parameters to read from it and the values to write to it.
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
import pickle
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
    """Report a dropped value: the work is done, so a value that no `returns` names must not fail the step."""
    sys.stdout.write("ignored the returned %s, because the step has no 'returns'\n" % what)


def call_function(name: str, parameters: dict[str, typing.Any], names: list[str]) -> dict[str, typing.Any]:
    module_name, _, function_name = name.rpartition(".")
    function = getattr(importlib.import_module(module_name), function_name)
    given = arguments_of(function, parameters)
    result = function(**given)
    if inspect.iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    return {name: kept(name, value) for name, value in values_of(result, names).items()}


def objects(part: str) -> typing.Any:
    """Return a part of LAUNCH_OBJECTS: the folder; `get`, names of parameters; `put`, names of values to files."""
    return json.loads(os.environ.get("LAUNCH_OBJECTS") or '{"folder": "", "get": [], "put": {}}')[part]


def loaded(name: str, value: typing.Any) -> typing.Any:
    """Return the object that a parameter stands for."""
    if isinstance(value, list):
        return [loaded(name, item) for item in value]
    if not isinstance(value, dict) or set(value) != {"$object"}:
        return value
    if name not in objects("get"):
        sys.exit("parameter %s is an object, which is not here: its step must declare it as 'kind: object', and the "
                 "executor needs a folder that it shares with the workers (data_dir)" % name)  # fmt: skip
    with open(os.path.join(objects("folder"), value["$object"]), "rb") as file:
        return pickle.load(file)  # noqa: S301 - of a step that the file declares; this is the task, not the worker


def kept(name: str, value: typing.Any) -> typing.Any:
    """Write a value that is an object to its file, and return what stands for it."""
    path = objects("put").get(name)
    if path is None:
        return value
    target = os.path.join(objects("folder"), path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        pickle.dump(value, file)
    return {"$object": path}


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
            given.update({key: loaded(key, value) for key, value in parameters.items() if key not in expected})
        elif hints.get(name) is not None and getattr(hints[name], "__module__", "") == "argparse":
            given[name] = hints[name](**parameters)
        elif name in objects("get"):
            given[name] = loaded(name, parameters[name])
        elif name in parameters:
            given[name] = cast(loaded(name, parameters[name]), hints.get(name))
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


def plain(value: typing.Any, name: str = "") -> typing.Any:
    """Return a pydantic model or a dataclass as a dict."""
    if name and name in objects("put"):
        return value
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
            return {name: plain(value, name) for name, value in zip(names, result)}
        if len(names) == 1 and not (isinstance(result, dict) and names[0] in result):
            return {names[0]: plain(result[0] if isinstance(result, tuple) and len(result) == 1 else result, names[0])}
    # The fields of a model are returned one by one.
    values: typing.Any
    if hasattr(result, "model_fields_set") or hasattr(result, "__dataclass_fields__"):
        fields = getattr(type(result), "model_fields", None) or result.__dataclass_fields__
        values = {name: plain(getattr(result, name), name) for name in fields}
    elif isinstance(result, dict):
        values = {name: plain(value, name) for name, value in result.items()}
    else:
        values = plain(result)
    if not isinstance(values, dict):
        ignored(type(result).__name__)
        return {}
    return {name: values[name] for name in names if name in values} if names else values


@contextlib.contextmanager
def scratch_folder() -> typing.Iterator[str]:
    """Yield an empty folder of this attempt, because others may run in the current folder at the same time."""
    # The folder of the result is removed with the app; a process that is killed leaves a folder in /tmp for ever.
    result_dir = os.path.dirname(os.environ.get("LAUNCH_RESULT_PATH") or "")
    parent = result_dir if result_dir and result_dir[:4] != "/dev" and os.access(result_dir, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="notebook-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


KEEP = """import os as _launch_os, pickle as _launch_pickle
if %(name)r in _launch_values:
    _launch_os.makedirs(_launch_os.path.dirname(%(file)r), exist_ok=True)
    with open(%(file)r, "wb") as _launch_file:
        _launch_pickle.dump(_launch_values[%(name)r], _launch_file)
    _launch_values[%(name)r] = %(value)r
"""


def code_of(value: typing.Any) -> str:
    """Return an expression for a parameter of a notebook that is an object, or a list of objects."""
    if isinstance(value, list):
        return "[%s]" % ", ".join(map(code_of, value))
    if isinstance(value, dict) and set(value) == {"$object"}:
        return "__import__('pickle').load(open(%r, 'rb'))" % os.path.join(objects("folder"), value["$object"])
    return repr(value)


def run_notebook(
    path: str, output_path: str, tag: str, parameters: dict[str, typing.Any], names: list[str], scratch: str
) -> dict[str, typing.Any]:
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as error:
        sys.exit("a notebook needs three packages where it runs: pip install nbclient nbformat ipykernel (%s)" % error)
    if not os.path.isabs(path):
        path = os.path.join(os.environ.get("LAUNCH_CODE_DIR") or os.getcwd(), path)
    read: typing.Any = nbformat.read
    notebook = read(path, as_version=4)
    cells = notebook.cells
    tagged = [at for at, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
    declared = json.loads(os.environ.get("LAUNCH_DECLARED") or json.dumps([*parameters]))
    first = "\n".join(
        "%s = %s" % (name, code_of(value) if name in objects("get") else repr(value))
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
    for name, object_path in objects("put").items():
        made = os.path.join(objects("folder"), object_path)
        cells.append(new_cell(KEEP % {"name": name, "file": made, "value": {"$object": object_path}}))
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
