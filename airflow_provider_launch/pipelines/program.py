"""Runs a function or a notebook inside an app. Standard library only, because images may lack this package.

    program.py function MODULE.FUNCTION [NAME ...]
    program.py notebook PATH OUTPUT_PATH OUTPUT_TAG [NAME ...]
    program.py pack

Parameters are read from LAUNCH_PARAMETERS, a JSON object, or from its parts LAUNCH_PARAMETERS_0, _1 and so on. The
result is written to LAUNCH_RESULT_PATH. NAME selects the values to return; without names all are returned.
`pack` packs a result that is already there.
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

import base64
import contextlib
import importlib
import inspect
import json
import keyword
import pickle
import shutil
import tempfile
import types
import typing
import zlib


LIMIT = 4096  # bytes of a result, as it is written
PLAIN = 2048  # larger results are packed
LARGEST = 64 * 1024  # bytes of a result before it is packed
PARAMETERS = ("MAGNUS_PRM_", "RUNNABLE_PRM_", "LAUNCH_PARAM_")
TRACKED = "MAGNUS_TRACK_"

# The functions that steps import from magnus, where it is not installed.
MAGNUS = """import json, os

_PREFIXES = ("LAUNCH_PARAM_", "RUNNABLE_PRM_", "MAGNUS_PRM_")


def _text(value):
    value = value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value
    return value if isinstance(value, str) else json.dumps(value)


def _value(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def get_parameter(key=None, cast_as=None):
    parts = [os.environ.get("LAUNCH_PARAMETERS", "")]
    while "LAUNCH_PARAMETERS_%d" % (len(parts) - 1) in os.environ:
        parts.append(os.environ["LAUNCH_PARAMETERS_%d" % (len(parts) - 1)])
    found = json.loads("".join(parts) or "{}")
    for prefix in _PREFIXES:
        names = [name for name in os.environ if name.startswith(prefix)]
        found.update({name[len(prefix) :]: _value(os.environ[name]) for name in names})
    if key is not None and key not in found:
        raise Exception("Parameter %s is not set before" % key)
    value = found if key is None else found[key]
    if cast_as is None or isinstance(value, cast_as):
        return value
    return cast_as(**value) if isinstance(value, dict) else cast_as(value)


def set_parameter(**values):
    os.environ.update({"MAGNUS_PRM_" + name: _text(value) for name, value in values.items()})


def track_this(step=0, **values):
    suffix = "_STEP_%s" % step
    os.environ.update({"MAGNUS_TRACK_" + name + suffix: _text(value) for name, value in values.items()})


def get_secret(secret_name):
    if secret_name not in os.environ:
        raise KeyError("there is no secret %r; name it in 'secrets' of the step" % secret_name)
    return os.environ[secret_name]


def get_run_id():
    return os.environ.get("LAUNCH_RUN_ID", "")


def get_tag():
    return ""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_, **__):
        raise NotImplementedError("magnus.%s does not work here; see the page 'Migrate from magnus or runnable'" % name)

    return missing
"""
PROVIDE = (
    """import importlib.util, sys, types
if importlib.util.find_spec("magnus") is None:
    sys.modules["magnus"] = types.ModuleType("magnus")
    exec(%r, sys.modules["magnus"].__dict__)
"""
    % MAGNUS
)


def main(arguments: list[str]) -> None:
    if arguments[0] == "pack":
        pack_result(os.environ["LAUNCH_RESULT_PATH"])
        return
    # An earlier step may have left a module of any name among the files of this one.
    is_data = bool(os.environ.get("LAUNCH_IN_DATA_DIR"))
    here = os.path.realpath(os.getcwd())
    sys.path[:] = [path for path in sys.path if not (is_data and os.path.realpath(path) == here)]
    for folder in ("" if is_data else os.getcwd(), os.environ.get("LAUNCH_CODE_DIR")):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    parameters = json.loads(os.environ.get("LAUNCH_PARAMETERS") or joined("LAUNCH_PARAMETERS") or "{}")
    if arguments[0] == "function":
        exec(PROVIDE, {})  # noqa: S102 - our own text, which notebooks run, too
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


def changed_variables(
    before: typing.Mapping[str, str], after: typing.Mapping[str, str], names: list[str]
) -> dict[str, typing.Any]:
    """Return the parameters and metrics that a program set as variables, as magnus allows."""
    found: dict[str, typing.Any] = {}
    for name, text in after.items():
        bare = next((name[len(prefix) :] for prefix in PARAMETERS if name.startswith(prefix)), "")
        if before.get(name) == text or not (name.startswith(TRACKED) or (bare and (not names or bare in names))):
            continue
        try:
            found[bare or name] = json.loads(text)
        except ValueError:
            found[bare or name] = text
    return found


def packed(text: str) -> str:
    """Return a JSON document that the launcher unpacks, if that is shorter."""
    if len(text.encode()) <= PLAIN:
        return text
    data = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return min(text, json.dumps({"$packed": data}), key=len)


def pack_result(path: str) -> None:
    """Pack the result in a file, unless it is a mistake that the launcher explains."""
    with open(path, "rb") as file:
        data = file.read(LARGEST + 1)
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if len(data) <= LARGEST:
            with open(path, "w") as file:
                file.write(packed(text))


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
    result = packed(text)
    if len(text) > LARGEST or len(result) > LIMIT:
        size = "values of %d bytes, more than %d packed or %d as they are" % (len(text), LIMIT, LARGEST)
        if is_declared:
            sys.exit("the step returned %s; put large values into the catalog" % size)
        ignored(size)
        return
    with open(path, "w") as file:
        file.write(result)


def ignored(what: str) -> None:
    """Report a dropped value: the work is done, so a value that no `returns` names must not fail the step."""
    sys.stdout.write("ignored the returned %s, because the step has no 'returns'\n" % what)


def call_function(name: str, parameters: dict[str, typing.Any], names: list[str]) -> dict[str, typing.Any]:
    module_name, _, function_name = name.rpartition(".")
    function = getattr(importlib.import_module(module_name), function_name)
    if inspect.isasyncgenfunction(function):
        sys.exit("%s is an async generator, whose stream has no reader here; return the last value instead" % name)
    given = arguments_of(function, parameters)
    before = dict(os.environ)

    class Environment(type(os.environ)):  # type: ignore[misc]  # the class has no public name
        def __setitem__(self, name: str, text: str) -> None:
            super().__setitem__(name, text)
            before.pop(name, None)  # it is returned, also with the same value

    os.environ.__class__ = Environment
    result = function(**given)
    if inspect.iscoroutine(result):
        import asyncio

        result = asyncio.run(result)
    found = changed_variables(before, os.environ, names)
    left = [name for name in names if name not in found]
    returned = values_of(result, left) if left or not names else {}
    return {**found, **{name: kept(name, value) for name, value in returned.items()}}


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


def hints_of(function: typing.Any) -> dict[str, typing.Any]:
    """Return the annotations of a function that can be resolved here."""
    with contextlib.suppress(Exception):
        return typing.get_type_hints(function)
    found = {}
    with contextlib.suppress(Exception):
        names = getattr(inspect.unwrap(function), "__globals__", None)
        for each in function.__annotations__.items():
            with contextlib.suppress(Exception):  # such as a name that is only imported for type checkers
                found.update(typing.get_type_hints(types.SimpleNamespace(__annotations__=dict([each])), names))
    return found


def arguments_of(function: typing.Any, parameters: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Return the arguments by name, converted by their annotations."""
    hints = hints_of(function)
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
    # NumPy arrays, numbers and similar.
    convert = getattr(value, "tolist", None) or getattr(value, "item", None)
    return convert() if callable(convert) else value


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


def show_live(client: typing.Any) -> None:
    """Let a client of a notebook print lines when they come."""
    keep = client.output

    def show(outs: typing.Any, msg: typing.Any, *more: typing.Any) -> typing.Any:
        if msg["msg_type"] == "stream":
            sys.stdout.write(msg["content"]["text"])
            sys.stdout.flush()
        return keep(outs, msg, *more)

    client.output = show


def socket_folder(stack: contextlib.ExitStack, scratch: str) -> str | None:
    """Return a folder for the sockets of a kernel; None if none can be made, which is then reached by ports.

    Kernels that start at once may choose the same ports, and one of them then hangs.
    """
    import socket

    # The path of a socket has at most 107 bytes.
    for folder in (scratch, "/tmp"):  # noqa: S108 - the folder in it is ours alone
        with contextlib.suppress(OSError):
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="k", dir=folder))
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(os.path.join(made, "kernel-0"))
            return made
    return None


def execute(notebook: typing.Any, start: str, scratch: str) -> None:
    from nbclient import NotebookClient
    from traitlets.config import Config

    with contextlib.ExitStack() as stack:
        sockets = socket_folder(stack, scratch)
        config = {"KernelManager": {"transport": "ipc", "ip": os.path.join(sockets, "kernel")}} if sockets else {}
        client: typing.Any = NotebookClient(
            notebook, timeout=None, startup_timeout=600, resources={"metadata": {"path": start}}, config=Config(config)
        )
        show_live(client)
        client.execute()


def run_notebook(
    path: str, output_path: str, tag: str, parameters: dict[str, typing.Any], names: list[str], scratch: str
) -> dict[str, typing.Any]:
    try:
        import nbclient  # noqa: F401 - before anything is written
        import nbformat
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
    # Without a tag or names a notebook returns only the parameters that it sets as variables.
    cells.append(
        new_cell(
            "import json as _launch_json, os as _launch_os\n"
            "_launch_set = {name: text for name, text in _launch_os.environ.items() if name.startswith(%r)}\n"
            "open(%r, 'w').write(_launch_json.dumps([_launch_values, _launch_set]))" % ((*PARAMETERS, TRACKED), target)
        )
    )
    # Jupyter would keep the address of the kernel below the home folder.
    os.environ.setdefault("JUPYTER_RUNTIME_DIR", scratch)
    # The kernel imports modules from its start folder, and later from the current one.
    start = os.environ.get("LAUNCH_CODE_DIR") or (scratch if os.environ.get("LAUNCH_IN_DATA_DIR") else os.getcwd())
    enter = "import os, sys\nsys.path[:] = [path or %r for path in sys.path]\nos.chdir(%r)\n"
    provide = "exec(%r, {})\ndel os, sys" % PROVIDE
    cells.insert(0, new_cell(enter % (start, os.getcwd()) + provide))

    try:
        execute(notebook, start, scratch)
    finally:
        del cells[0]
        if output_path:
            os.makedirs(os.path.dirname(output_path) or ".", exist_ok=True)
            write: typing.Any = nbformat.write
            write(notebook, output_path)
    with open(target) as file:
        values, variables = json.load(file)
    returned = {name: values[name] for name in wanted if name in values} if wanted else values
    return {**returned, **changed_variables(os.environ, variables, wanted)}


if __name__ == "__main__":
    main(sys.argv[1:])
