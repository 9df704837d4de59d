"""Runs a function of a DAG file in a replica. Standard library only, for Python 3.8 and newer.

Its text is sent along with the function, because an image may lack this package. There it consists of two modules, so
that processes which the function spawns can import the function's helpers: this one, and `launch_function`, which
holds only what the DAG file defines.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    # The module `typing` would take a tenth of the time of a start.
    from collections.abc import Iterable, Mapping
    from types import CodeType
    from typing import Any

LARGEST_PLAIN, LARGEST_RESULT, LARGEST_FILE = 2048, 65536, 4096
"""Bytes of a result that is written as it is; of one that can be packed; of the file for it."""
ANNOTATIONS = annotations.compiler_flag
"""Annotations stay text, so their names are not needed. Python 3.8.2 has changed the number."""
FOLDER, MODULE, PROGRAM = "launch-function-", "launch_function", "launch_function_program"
KILLED = 143
MESSAGE_CHARS, FRAMES = 1500, 8
"""Limits of the message in the error file, which Kubernetes cuts at 4096 bytes."""


APART = "the replicas of this app do not know of each other; give it a port in 'port_map'"
PORTS = "LAUNCH_PORT_"


class Replica:
    """This replica; the argument `replica` of a function."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.id = int(environ.get("LAUNCH_REPLICA_ID") or 0)
        """Its number, from 0."""
        self.count = int(environ.get("LAUNCH_NUM_REPLICAS") or 1)
        """Number of replicas."""
        self.attempt = int(environ.get("LAUNCH_ATTEMPT") or 0)
        """0 in the first run, plus one with each retry of the replica or of the app."""
        # No reference to the environment, so that the function can send this object to other processes.
        self._host = environ.get("TORCHX_RANK0_HOST")
        self._ports = {name: environ[name] for name in environ if name.startswith(PORTS)}
        self._prefix = PORTS + environ.get("LAUNCH_ROLE", "") + "_"

    def __repr__(self) -> str:
        return "Replica(id=%d, count=%d, attempt=%d)" % (self.id, self.count, self.attempt)

    @property
    def rank0_host(self) -> str:
        """Host of replica 0, as the other replicas reach it."""
        if not self._host:
            raise RuntimeError(APART)
        return self._host

    def port(self, name: str) -> int:
        """Return a port of `port_map` by its name."""
        text = (self._prefix + name).upper()
        # As `schedulers.environment.port_variable` names it.
        known = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        found = self._ports.get("".join(letter if letter in known else "_" for letter in text))
        if found is None:
            raise KeyError("port_map has no port %r" % name)
        return int(found)

    def part(self, items: Iterable[Any]) -> list[Any]:
        """Return the share of this replica in a list: consecutive items, so that all shares together are the list."""
        items = list(items)
        start, end = (len(items) * k // self.count for k in (self.id, self.id + 1))
        return items[start:end]


CURES = (
    ("item", "use .item()"),  # a number of NumPy or torch; an array has `tolist`, too
    ("isoformat", "use .isoformat()"),
    ("total_seconds", "use .total_seconds()"),
    ("__fspath__", "use str()"),
    ("model_dump", "use .model_dump(mode='json')"),
    ("__dataclass_fields__", "use dataclasses.asdict()"),
    ("__next__", "use list()"),
)


class Refused(Exception):
    """The function returned a value that cannot be a result."""


# ---- the module of the function ----------------------------------------------------------------------------------


def fill(namespace: dict[str, Any], source: dict[str, Any]) -> None:
    """Define in a module what the function uses of its file, at the lines of that file."""
    import linecache

    file = source["file"]
    lines: list[str] = []
    for number, text in source["pieces"]:
        piece = [line + "\n" for line in text.split("\n")]
        lines += ["\n"] * (number - 1 + len(piece) - len(lines))
        lines[number - 1 : number - 1 + len(piece)] = piece
    # For tracebacks, and for libraries that read the source of a function.
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    names = {"inf": float("inf"), "nan": float("nan"), "set": set, "frozenset": frozenset}
    names.update({"Ellipsis": ..., "T": source["texts"], "__builtins__": {}})
    for name, text in source["values"].items():
        namespace[name] = eval(text, dict(names))
    namespace.update(source["plain"])
    for number, text in source["pieces"]:
        exec(compiled(file, number, text, source["line"]), namespace)


def compiled(file: str, number: int, text: str, line: int) -> CodeType:
    """Return the code of a piece of the file; the function itself, at `line`, loses its defaults and decorators.

    Its defaults may need names that are not here, and are set later.
    """
    # Nothing is dedented: the text of a string would change.
    is_indented = text[:1] in (" ", "\t", "\f")
    text = "\n" * (number - 1 - is_indented) + "if 1:\n" * is_indented + text
    if number != line:
        code: CodeType = compile(text, file, "exec", ANNOTATIONS, True)
        return code
    import ast

    tree = compile(text, file, "exec", ANNOTATIONS | ast.PyCF_ONLY_AST, True)
    made = tree.body[0].body[0] if is_indented else tree.body[0]
    made.decorator_list = []
    arguments = made.args
    for values in (arguments.defaults, arguments.kw_defaults):
        values[:] = [value and ast.copy_location(ast.Constant(None), value) for value in values]
    changed: CodeType = compile(tree, file, "exec", ANNOTATIONS, True)
    return changed


def with_defaults(function: Any, defaults: dict[str, Any]) -> Any:
    """Set the defaults of the function, which count when it calls itself."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    given = positional[len(positional) - len(function.__defaults__ or ()) :]
    if given:
        function.__defaults__ = tuple(defaults.get(name) for name in given)
    if function.__kwdefaults__:
        function.__kwdefaults__ = {name: defaults.get(name) for name in function.__kwdefaults__}
    return function


def made_folder() -> str | None:
    """Return a new folder for the modules; None: nothing can be written here."""
    of_app = os.path.dirname(os.environ.get("TORCHELASTIC_ERROR_FILE") or "")
    for parent in (of_app, os.environ.get("TMPDIR"), "/tmp", os.getcwd()):
        # In /dev there are devices, and on Kubernetes the file of the error.
        if parent and not parent.startswith("/dev"):
            folder = os.path.join(parent, FOLDER + os.urandom(6).hex())
            try:
                os.mkdir(folder, 0o700)
            except OSError:
                continue
            return folder
    return None


def imported(program: str, text: str) -> Any:
    """Return the module with the function, and the folder with its files."""
    folder = made_folder()
    if folder is None:
        # Processes that the function spawns will not find its helpers; all else works.
        module = type(sys)(MODULE)
        sys.modules[MODULE] = module
        fill(vars(module), json.loads(text))
        return module
    import atexit

    atexit.register(remove, folder, os.getpid())
    files = {
        PROGRAM: program,
        MODULE: "import %s\n%s.fill(globals(), %s.json.loads(%r))\n" % (PROGRAM, PROGRAM, PROGRAM, text),
    }
    for name, content in files.items():
        with open(os.path.join(folder, name + ".py"), "w", encoding="utf-8") as file:
            file.write(content)
    # At the end, so that these modules hide no other.
    sys.path.append(folder)
    __import__(MODULE)
    return sys.modules[MODULE]


def remove(folder: str, owner: int) -> None:
    if os.getpid() != owner:
        return
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.remove(os.path.join(parent, name))
        for name in folders:
            os.rmdir(os.path.join(parent, name))
    os.rmdir(folder)


# ---- result and error --------------------------------------------------------------------------------------------


def plain(value: Any, path: str) -> Any:
    """Return the value as JSON holds it. NaN and Infinity stay: the launcher stores null and names their place.

    Raises:
        Refused: JSON cannot hold it, or a part of it.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(each, "%s[%d]" % (path, at)) for at, each in enumerate(value)]
    if isinstance(value, dict):
        wrong = [name for name in value if not isinstance(name, str)]
        if wrong:
            raise Refused("%s has the key %r, which is not a text" % (path, wrong[0]))
        return {name: plain(each, "%s[%r]" % (path, name)) for name, each in value.items()}
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        # A number of NumPy or torch, such as a loss: the same number in Python.
        return plain(value.item(), path)
    raise Refused("%s is a %s (%s); %s" % (path, type(value).__name__, repr(value)[:60], cure_of(value, "return")))


def cure_of(value: Any, verb: str) -> str:
    """Return how to change a value that JSON cannot hold; `verb` is what happens with it: pass, return."""
    if isinstance(value, (set, frozenset)):
        return "use sorted()"
    if isinstance(value, (bytes, bytearray)):
        return verb + " a text, or the address of the data"
    if hasattr(value, "tolist") and getattr(value, "shape", ()) != ():
        return "use .tolist(), or %s the address of the data" % verb
    others = verb + " texts, numbers, lists and dicts, or the address of the data"
    return next((cure for name, cure in CURES if hasattr(type(value), name)), others)


def document(value: Any, name: str) -> dict[str, Any]:
    """Return the document for a value that the function returned: it holds the value, packed if that is large."""
    try:
        text = json.dumps(plain(value, "value"), separators=(",", ":"))
    except Exception as error:
        return {"refused": "%s() returned a value that JSON cannot hold: %s" % (name, error)}
    if len(text) <= LARGEST_PLAIN:
        return {"value": json.loads(text)}
    import base64
    import zlib

    found = {"packed": base64.b85encode(zlib.compress(text.encode(), 9)).decode()}
    if len(text) <= LARGEST_RESULT and len(json.dumps(found)) <= LARGEST_FILE:
        return found
    cause = (
        "more than %d bytes" % LARGEST_RESULT
        if len(text) > LARGEST_RESULT
        else "%d bytes, and packed more than %d" % (len(text), LARGEST_FILE)
    )
    return {"refused": "%s() returned %s; store it, and return its address" % (name, cause)}


def write_result(path: str | None, found: dict[str, Any]) -> None:
    """Write the document of the function, in addition to what a tracker wrote of this run."""
    if not path:
        return
    try:
        with open(path, encoding="utf-8") as file:
            others = json.loads(file.read() or "{}")
    except (OSError, ValueError):
        others = {}
    whole = {**others, **found} if isinstance(others, dict) else found
    text = json.dumps(whole, separators=(",", ":"))
    if len(text) > LARGEST_FILE:
        cause = "the returned value and the records of the tracker have more than %d bytes" % LARGEST_FILE
        text = json.dumps({"refused": cause})
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def message_of(error: BaseException, frames: Iterable[Any], file: str) -> str:
    """Return the error with the lines of the DAG file that led to it, the last one at the end."""
    short = os.path.basename(file)
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    first = "%s: %s" % (type(error).__name__, text) if text else type(error).__name__
    if isinstance(error, ImportError):
        first += "; install it in the image, or send it with a workspace"
    if isinstance(error, SyntaxError):
        first += "; the image has Python %s" % sys.version.split()[0]
    lines = [first.replace("\n", "\n  ")[:MESSAGE_CHARS]]
    own = [frame for frame in frames if frame.filename == file]
    lines += ["  %s:%d, in %s: %s" % (short, each.lineno, each.name, (each.line or "")[:100]) for each in own[-FRAMES:]]
    return "\n".join(lines)[: 2 * MESSAGE_CHARS]


def report(error: BaseException, file: str) -> None:
    """Print the traceback from the first line of the DAG file on, and write the error file."""
    import traceback

    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename != file:
        start = start.tb_next
    # Before the streams are used, which the function may have closed.
    write_error(message_of(error, traceback.extract_tb(start), file))
    sys.stdout.flush()
    traceback.print_exception(type(error), error, start)


def write_error(message: str) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            extra = {"timestamp": str(int(time.time()))}
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
    except OSError as error:
        sys.stderr.write("the error file cannot be written: %s\n" % error)


# ---- run ---------------------------------------------------------------------------------------------------------


def end_on_sigterm() -> None:
    """End the function by an exception, so that its `finally` runs; a second signal does not interrupt that."""
    import signal

    count = [0]

    def end(_number: int, _frame: object) -> None:
        count[0] += 1
        if count[0] == 1:
            sys.exit(KILLED)

    def leave() -> None:
        # In a forked process, such as one of a pool: Python's handler would not run while it waits for a lock.
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=leave)
    signal.signal(signal.SIGTERM, end)


def show_logging() -> None:
    """Show what the function logs: from INFO on, in stdout, because lines of stderr look like warnings."""
    import logging

    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def call(program: str, text: str, sent: dict[str, Any]) -> Any:
    """Import the function and call it; return its value."""
    module = imported(program, text)
    function = with_defaults(getattr(module, sent["name"]), sent["defaults"])
    args, named, at = sent["args"], sent["kwargs"], sent["replica"]
    # The class of the module, which other processes can import.
    replica = getattr(sys.modules.get(PROGRAM), "Replica", Replica)()
    if isinstance(at, int):
        args[at] = replica
    elif at:
        named[at] = replica
    value = function(*args, **named)
    if hasattr(value, "cr_frame"):
        import asyncio

        return asyncio.run(value)
    return value


def main(program: str, text: str, arguments: str, result_path: str | None) -> None:
    """Run the function, and end the process with its exit code."""
    end_on_sigterm()
    show_logging()
    sent = json.loads(arguments)
    source = {**json.loads(text), **{name: sent[name] for name in ("values", "texts", "plain")}}
    try:
        value = call(program, json.dumps(source), sent)
    except SystemExit as error:
        if error.code not in (None, 0):
            if isinstance(error.code, str):
                write_error(error.code[:MESSAGE_CHARS])
            raise
        value = None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Also asyncio.CancelledError, and classes of the function.
        report(error, source["file"])
        sys.exit(1)
    if sent["gather"] or Replica().id == 0:
        write_result(result_path, document(value, sent["name"]))


if __name__ == "<launch_function>":
    main(*TEXTS)  # type: ignore[name-defined]  # noqa: F821 - given by the command of the replica
