"""The parts of a file that travel with a function: its own lines, and those that it uses, at their lines."""

from __future__ import annotations

import sys
import textwrap
import traceback
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_launch.functions import program
from airflow_provider_launch.functions.app import _divided
from airflow_provider_launch.functions.quick_check import surely_travels
from airflow_provider_launch.functions.source import source_of
from airflow_provider_launch.specs.errors import InvalidAppError


def there(function: Any, **how: Any) -> Any:
    """Return the function as a replica has it, without anything else of its file."""
    source = source_of(function, is_final=True, **how)
    values, texts, plain = _divided(source.values)
    document = {"file": source.file, "line": source.line, "pieces": source.pieces}
    document |= {"values": values, "texts": texts, "plain": plain}
    # Dataclasses search for the module of a class.
    module = sys.modules["launch_function"] = ModuleType("launch_function")
    try:
        program.fill(vars(module), document)
    finally:
        del sys.modules["launch_function"]
    return getattr(module, source.name)


KINDS = {
    "only itself": ("def f(x):\n    return x + 1\n", (1,), 2),
    "constants": (
        "A, B = 1, {'x': (1, 'a', None)}\nC = float('inf')\nD = {1, 2}\nE = set()\n"
        "def f():\n    return A, B['x'], C > 1e300, sorted(D), E == set()\n",
        (), (1, (1, "a", None), True, [1, 2], True),
    ),
    "helper below": ("def f(x):\n    return g(x)\n\ndef g(x):\n    return x * 2\n", (2,), 4),
    "helpers of helpers": (
        "import math\ndef h(x):\n    return math.floor(x)\ndef g(x):\n    return h(x) + K\nK = 5\n"
        "def f(x):\n    return g(x)\n",
        (2.7,), 7,
    ),
    "a decorated helper": (
        "import functools\n@functools.lru_cache(maxsize=None)\ndef g(x: int) -> 'int':\n    return x * 2\n"
        "def f(x):\n    return g(x)\n",
        (2,), 4,
    ),
    "a decorator of the file": (
        "import functools\ndef twice(g):\n    @functools.wraps(g)\n    def wrapper(*args):\n        return g(*args) * 2\n"
        "    return wrapper\n@twice\ndef g(x):\n    return x + 1\ndef f(x):\n    return g(x)\n",
        (2,), 6,
    ),
    "a decorator that keeps no name": (
        "def twice(g):\n    def wrapper(*args):\n        return g(*args) * 2\n    return wrapper\n"
        "@twice\ndef g(x):\n    return x + 1\ndef f(x):\n    return g(x)\n",
        (2,), 6,
    ),
    "a helper with defaults": ("K = 7\ndef g(x=K):\n    return x\ndef f():\n    return g()\n", (), 7),
    "imports with other names": (
        "import os.path as p, json\nfrom math import pi as PI, e\n"
        "def f():\n    return p.join('a', 'b'), json.dumps(1), PI > e\n",
        (), ("a/b", "1", True),
    ),
    "modules of packages": (
        "import xml.dom\nimport xml.sax.handler\ndef f():\n    return xml.dom.__name__, xml.sax.handler.__name__\n",
        (), ("xml.dom", "xml.sax.handler"),
    ),
    "an import that is tried": (
        "try:\n    import no_such_module as fast\nexcept ImportError:\n    fast = None\n"
        "def f():\n    return fast is None\n",
        (), True,
    ),
    "a helper below that is bound again": (
        "def f():\n    return g()\n"
        "try:\n    print\nexcept NameError:\n    def g():\n        return 1\nfinally:\n    def g():\n        return 2\n",
        (), 2,
    ),
    "an import for a version": (
        "import sys\nif sys.version_info >= (3, 4):\n    import json as data\nelse:\n    import pickle as data\n"
        "def f():\n    return data.__name__\n",
        (), "json",
    ),
    "imports inside of it": ("def f():\n    import json\n    from math import pi\n    return json.dumps(pi > 3)\n", (), "true"),
    "all names of a module": ("from math import *\ndef f(x):\n    return floor(x), tau > 6\n", (1.5,), (1, True)),
    "a class": (
        "from dataclasses import dataclass, field\nfrom enum import Enum\nclass Kind(Enum):\n    A = 1\n"
        "@dataclass\nclass Point:\n    x: int\n    kind: Kind = Kind.A\n    more: list = field(default_factory=list)\n"
        "class Far(Point):\n    @property\n    def far(self):\n        return self.x > LIMIT\nLIMIT = 3\n"
        "def f(x):\n    return Far(x).far, Point(1).kind.name\n",
        (4,), (True, "A"),
    ),
    "a class that uses a name of its own": (
        "x = 1\nclass K:\n    x = x + 1\n    y = [x for _ in range(2)]\n    def m(self):\n        return super().__init__()\n"
        "def f():\n    return K.x, K.y, K().m()\n",
        (), (2, [1, 1], None),
    ),
    "a class that hides a name that cannot travel": (
        "import logging\nlog = logging.getLogger()\nclass K:\n    log = 1\n    y = log + 1\ndef f():\n    return K.y\n",
        (), 2,
    ),
    "hints without their modules": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd\n"
        "def f(x: pd.DataFrame) -> pd.Series:\n    def g(y: pd.Index) -> None:\n        z: pd.Index = y\n        return z\n"
        "    return g(x)\n",
        (1,), 1,
    ),
    "hints that are evaluated": (
        "import fractions\ndef f(x: fractions.Fraction):\n    def g(y: fractions.Fraction = None):\n        return 1\n"
        "    return g() if 'fractions' not in globals() else 2\n",
        (1,), 1,
    ),
    "recursion": ("def f(n, acc=0):\n    return acc if not n else f(n - 1, acc + n)\n", (3, 0), 6),
    "two that call each other": (
        "def f(n):\n    return g(n)\ndef g(n):\n    return n if n < 1 else f(n - 1)\n", (3,), 0,
    ),
    "inner functions and comprehensions": (
        "K = 2\ndef f(xs):\n    def g(x):\n        nonlocal total\n        total += x\n        return [y * K for y in range(x)]\n"
        "    total = 0\n    made = [g(x) for x in xs]\n    return made, total, (lambda: K)()\n",
        ([1, 2],), ([[0], [0, 2]], 3, 2),
    ),
    "global": ("n = 1\ndef f():\n    global n\n    n += 1\n    return n\n", (), 2),
    "texts stay as they are": (
        "def f():\n    return '''\n# a heading\n            body\n\\t'''\n", (), "\n# a heading\n            body\n\t",
    ),
    "tabs": ("if True:\n\tdef f(x):\n\t\tif x:\n\t\t\treturn 1\n", (1,), 1),
    "line ends of Windows": ("K = 3\r\ndef f():\r\n    return K\r\n", (), 3),
    "letters": ("ключ = 'знач'\ndef f():\n    return ключ + '$HOME {{ ds }} $(X) \"\\''\n", (), "знач$HOME {{ ds }} $(X) \"'"),
    "one line": ("def f(x): return x\n", (1,), 1),
    "no line end": ("K = 1\ndef f(x): return x + K", (1,), 2),
    "inside of a block": (
        "import contextlib\nwith contextlib.nullcontext():\n    if True:\n        @staticmethod\n        def g():\n"
        "            return 1\n        def f(x=print,\n    y=1):\n            # less\n            return y\n",
        (2, 3), 3,
    ),
    "values that only Python writes": (
        "A, B, C, D = ..., b'\\x00\\xff', -0.0, frozenset()\ndef f():\n    return A is ..., B, str(C), D\n",
        (), (True, b"\0\xff", "-0.0", frozenset()),
    ),
    "numbers that JSON does not have": (
        "A, B = float('nan'), (float('inf'), float('-inf'))\ndef f():\n    return str(A), B\n",
        (), ("nan", (float("inf"), float("-inf"))),
    ),
    "values within values": (
        "A = ({}, [], (), (b'', {1: ('a', {b'b', 'c'}, frozenset({1.5}))}, float('-inf')), '\\ud800')\n"
        "def f():\n    return A\n",
        (), ({}, [], (), (b"", {1: ("a", {b"b", "c"}, frozenset({1.5}))}, float("-inf")), "\ud800"),
    ),
    "names that a function makes": (
        "def start():\n    global MODEL\n    MODEL = 3\ndef work(x):\n    return MODEL * x\n"
        "def f(x):\n    start()\n    return work(x)\n",
        (2,), 6,
    ),
    "a class of any type": (
        "from typing import Generic, TypeVar\nclass Base:\n    x = 1\nT = TypeVar('T', bound=Base)\n"
        "class Box(Generic[T]):\n    def __init__(self, item: T) -> None:\n        self.item = item\n"
        "def f():\n    return Box(Base()).item.x\n",
        (), 1,
    ),
    "names of hints": (
        "from typing import Dict, NewType, cast\nA = Dict[str, int]\nB = NewType('B', int)\nC = int | None\n"
        "def f(x):\n    return cast(A, x), B(1), isinstance(1, C)\n",
        ({"a": 1},), ({"a": 1}, 1, True),
    ),
    "patterns and walrus": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int\nK = 3\n"
        "def f(x):\n    match x if (n := len(x)) else None:\n        case {'a': [first, *rest]}:\n"
        "            return [P(first, n).y, rest, f'{K!r:>{K + 1}}']\n",
        ({"a": [1, 2]},), [1, [2], "   3"],
    ),
    "line ends inside of texts": (
        "K = 'a\u2028b'\n\f\ndef g():\n    return 1\ndef f():\n    return K, 'x\x0by\x85', g()\n",
        (), ("a\u2028b", "x\x0by\x85", 1),
    ),
    "many names": (
        "\n".join(f"K{n} = {n}" for n in range(300))
        + "\ndef f():\n    return " + " + ".join(f"K{n}" for n in range(300)) + "\n",
        (), sum(range(300)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "args", "expected"), KINDS.values(), ids=KINDS)
def test_a_function_of_this_kind_travels(module_of, text, args, expected) -> None:
    assert there(module_of(text).f)(*args) == expected


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_types_of_python_3_12_travel(module_of) -> None:
    text = "type L[T] = list[T]\ndef g[T](x: T) -> L[T]:\n    return [x]\ndef f():\n    return g(1), str(L)\n"

    assert there(module_of(text).f)() == ([1], "L")


def test_names_of_functions_around_it(module_of) -> None:
    text = """
        import json
        TOP = 1

        def dag(number):
            import math

            class Point:
                def __init__(self, x):
                    self.x = x + number

            def inner(x):
                return Point(x).x + TOP

            def f(x):
                return inner(x), math.floor(1.5), number, json.dumps(1)

            return f
        """

    assert there(module_of(textwrap.dedent(text)).dag(10))(1) == (12, 1, 10, "1")


def test_a_function_of_another_module(module_of, tmp_path, monkeypatch) -> None:
    """Its own module is the file, here of a package with relative imports."""
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/__init__.py").touch()
    (tmp_path / "acme/base.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "acme/steps.py").write_text("from .base import double\nK = 1\ndef f(x):\n    return double(x) + K\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = module_of("from acme.steps import f\n", "elsewhere/dag.py")
    try:
        source = source_of(module.f, is_final=True)
        assert there(module.f)(2) == 5
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
            del sys.modules[name]

    assert (1, "from acme.base import double\n") in source.pieces


def test_a_file_in_an_archive(tmp_path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "dags.zip", "w") as archive:
        archive.writestr("zipped_dag.py", "K = 4\ndef f():\n    return K\n")
    monkeypatch.syspath_prepend(str(tmp_path / "dags.zip"))
    module = __import__("zipped_dag")
    monkeypatch.delitem(sys.modules, "zipped_dag")

    assert there(module.f)() == 4


def test_only_what_it_uses_travels(module_of) -> None:
    text = (
        "import json, os\nfrom math import pi, e\nA, B = 1, 2\ndef g():\n    return 1\ndef f():\n    return A, pi, os\n"
    )
    source = source_of(module_of(text).f)

    assert source.values == {"A": "1"}
    assert source.pieces == [
        (1, "import os\n"), (2, "from math import pi\n"), (6, "def f():\n    return A, pi, os\n"),
    ]  # fmt: skip


def test_the_last_value_counts(module_of) -> None:
    """The file may change a value after the function; what it is in the end travels, as with a plain task."""
    module = module_of("K = 1\ndef f():\n    return K\n")
    module.K = 2

    assert there(module.f)() == 2


def test_a_traceback_has_the_lines_of_the_file(module_of) -> None:
    text = "\n\nclass K:\n    def m(self):\n        raise KeyError('x')\n\nif True:\n    def f():\n        return K().m()\n"
    module = module_of(text)
    function = there(module.f)
    # As in an image, in which the file does not exist.
    Path(module.__file__).unlink()
    try:
        function()
    except KeyError as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]
    assert [(frame.filename, frame.lineno, frame.name, frame.line) for frame in frames] == [
        (module.__file__, 9, "f", "return K().m()"),
        (module.__file__, 5, "m", "raise KeyError('x')"),
    ]


REFUSED = {
    "import functools\n@functools.singledispatch\ndef g(x):\n    return 1\n@g.register\ndef _(x: int):\n    return 2\n"
    "def f():\n    return g(1)\n": "functions are registered for 'g', which would be missing; use one function",
    "def g():\n    return g.n\ng.n = 3\ndef f():\n    return g()\n": "'g' has attributes, which would be missing: n",
    "class A:\n    try:\n        x = NO\n    except NameError:\n        x = 1\ndef f():\n    return A.x\n": (
        "it uses 'NO', which is neither in it nor in dag.py"
    ),
    "def f():\n    return nump.zeros(1)\n": "it uses 'nump', which is neither in it nor in dag.py",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import json as pd\ndef f():\n    return pd\n": (
        "it uses 'pd', which is imported for type checkers only"
    ),
    "import logging\nlog = logging.getLogger()\ndef f():\n    log.info(1)\n": (
        "'log' is not a plain value but a RootLogger; make it inside of the function"
    ),
    "import re\nP = re.compile('x')\ndef f():\n    return P\n": "'P' is not a plain value but a Pattern",
    "from pathlib import Path\nP = [Path('x')]\ndef f():\n    return P\n": "'P' is not a plain value but a list",
    "K = []\nK.append(K)\ndef f():\n    return K\n": "'K' is not a plain value but a list",
    "g = lambda: 1\ndef f():\n    return g()\n": "'g' is a lambda; write it with 'def'",
    "def g():\n    return 1\nh = g\ndef f():\n    return h()\n": "it calls 'g' by another name, 'h'; use one name",
    "import functools\ndef wrap(g):\n    @functools.wraps(g)\n    def inner():\n        return g()\n    return inner\n"
    "@wrap\ndef f():\n    return 1\n": "a decorator below @task.launch_python wraps it; call that inside",
    "def f():\n    yield 1\n": "it is a generator; return a list",
    "async def f():\n    yield 1\n": "it is a generator; return a list",
    "import nearby\ndef f():\n    return nearby\n": r"module 'nearby' lies next to its file; send it with workspace='\.'",
    "from nearby import x\ndef f():\n    return x\n": "module 'nearby' lies next to its file",
    "def f():\n    import nearby\n": "module 'nearby' lies next to its file",
    "def f():\n    from . import nearby\n": "it imports by a relative name",
    "def f():\n    return __file__\n": "it uses '__file__', but its file is not in the image",
    "def g():\n    return nump\ndef f():\n    return g()\n": "it uses 'nump', which is neither",
    "from collections import namedtuple\nP = namedtuple('P', 'x')\ndef f():\n    return P\n": (
        "the class 'P' is not in its file; define it with 'class'"
    ),
    "class A:\n    pass\nB = A\ndef f():\n    return B\n": "it uses the class 'A' by another name, 'B'",
    "n = 1\ndef dag():\n    n = 2\n    def f():\n        return n, g()\n    return f\ndef g():\n    return n\nf = dag()\n": (
        "'n' stands for two different things in what it uses; rename one"
    ),
    "def dag():\n    n = 1\n    def f():\n        nonlocal n\n        n = 2\n    return f\nf = dag()\n": (
        "line 4: no binding for nonlocal 'n' found"
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=range(len(REFUSED)))
def test_what_cannot_travel_is_refused(module_of, tmp_path, monkeypatch, text, message) -> None:
    (tmp_path / "nearby.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nearby", raising=False)  # of another test
    module = module_of(text)
    sys.modules.pop("nearby", None)

    with pytest.raises(InvalidAppError, match=rf"^function '(f|inner)' \(dag\.py:\d+\) cannot travel: {message}"):
        source_of(module.f, is_final=True)


def test_a_workspace_brings_modules_next_to_the_file(module_of, tmp_path) -> None:
    (tmp_path / "nearby.py").touch()

    assert source_of(module_of("def f():\n    import nearby\n").f, has_workspace=True)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(lambda: 1, "a lambda"), ("x".join, "a builtin_function_or_method"), (print, "a builtin_function"), (int, "a type"),
     (3, "a int")],
)  # fmt: skip
def test_only_functions_travel(value, kind) -> None:
    with pytest.raises(InvalidAppError, match=f"@task.launch_python needs a function made with 'def', not {kind}"):
        source_of(value)


def test_a_method_does_not_travel(module_of) -> None:
    module = module_of(
        "class K:\n    def m(self):\n        return 1\n    if True:\n        def n(self):\n            pass\n"
    )

    for function in (module.K.m, module.K.n):
        with pytest.raises(InvalidAppError, match="needs a function made with 'def', not a method"):
            source_of(function)


def test_a_file_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(): pass", namespace)

    with pytest.raises(InvalidAppError, match="its source cannot be read from '<string>'"):
        source_of(namespace["f"])


def test_a_file_that_has_changed_is_refused(module_of, tmp_path) -> None:
    module = module_of("def f():\n    return 1\n")
    source_of(module.f)
    (tmp_path / "dag.py").write_text("# a comment more\ndef f():\n    return 1\n")

    with pytest.raises(InvalidAppError, match="its file has changed since it was read"):
        source_of(module.f)


def test_a_file_that_is_no_longer_python_is_refused(module_of, tmp_path) -> None:
    module = module_of("def f():\n    return 1\n")
    (tmp_path / "dag.py").write_text("def f(:\n")

    with pytest.raises(InvalidAppError, match=r"cannot travel: its source cannot be read from '.*dag\.py'"):
        source_of(module.f)


def test_values_that_come_later_count_in_the_end(module_of) -> None:
    """While the file is read, names below the function have no values yet."""
    seen: list[tuple[str, ...]] = []
    text = "def f():\n    return A, g()\nsee(f)\nA = 1\ndef g():\n    return A\n"
    (module_text, see) = (
        f"import builtins\nsee = builtins.see_function\n{text}",
        lambda f: seen.append(source_of(f).later),
    )
    import builtins

    builtins.see_function = see  # type: ignore[attr-defined]
    try:
        module = module_of(module_text)
    finally:
        del builtins.see_function  # type: ignore[attr-defined]

    assert seen == [("A",)]
    assert there(module.f)() == (1, 1)


def test_values_of_a_function_around_it_may_come_later(module_of) -> None:
    """The decorator runs before the lines below the function."""
    seen: list[tuple[bool, tuple[str, ...]]] = []
    text = "def dag(see, is_set):\n    def f():\n        return n\n    see(f)\n    if is_set:\n        n = 1\n    return f\n"
    dag = module_of(text).dag

    function = dag(lambda f: seen.append((surely_travels(f), source_of(f).later)), True)

    assert seen == [(False, ("n",))]
    with pytest.raises(InvalidAppError, match="cannot travel: 'n' has no value yet; move its definition up"):
        source_of(dag(source_of, False), is_final=True)
    assert there(function)() == 1
