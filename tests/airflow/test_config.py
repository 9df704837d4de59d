"""Section `[launch]`: the code reads exactly the declared options, with the same defaults."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from airflow.configuration import conf
from airflow.exceptions import AirflowConfigException

import airflow_provider_launch
from airflow_provider_launch.get_provider_info import get_provider_info

DECLARED = get_provider_info()["config"]["launch"]["options"]
KINDS = {"getfloat": "float", "getint": "integer", "getboolean": "boolean", "get": "string"}


def reads() -> list[tuple[str, str, ast.expr | None]]:
    """Each `conf.get...("launch", name, fallback=...)` in the package: method, name, fallback."""
    found = []
    for path in Path(airflow_provider_launch.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if '"launch"' not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                continue
            if ast.unparse(node.func.value) == "conf" and ast.unparse(node.args[0]) == "'launch'":
                fallback = next((word.value for word in node.keywords if word.arg == "fallback"), None)
                found.append((node.func.attr, ast.literal_eval(node.args[1]), fallback))
    return [read for read in found if read[0] in KINDS]


def test_options_that_are_read_are_declared_and_vice_versa() -> None:
    assert {name for _, name, _ in reads()} == set(DECLARED)


@pytest.mark.parametrize(
    ("method", "name", "fallback"), reads(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_code_and_declaration_agree(method, name, fallback, monkeypatch) -> None:
    """The fallback holds where Airflow does not load the declaration: two defaults would be two behaviours."""
    monkeypatch.delenv(f"AIRFLOW__LAUNCH__{name.upper()}", raising=False)
    assert KINDS[method] == DECLARED[name]["type"]
    assert fallback is not None
    if isinstance(fallback, ast.Constant):
        assert type(fallback.value)(getattr(conf, method)("launch", name)) == fallback.value


@pytest.mark.parametrize("name", DECLARED)
def test_airflow_knows_each_option_with_its_default(name, monkeypatch) -> None:
    monkeypatch.delenv(f"AIRFLOW__LAUNCH__{name.upper()}", raising=False)  # tests/conftest.py sets some

    assert conf.get("launch", name) == DECLARED[name]["default"]


@pytest.mark.parametrize("name", DECLARED)
def test_each_option_can_be_set(name, monkeypatch) -> None:
    monkeypatch.setenv(f"AIRFLOW__LAUNCH__{name.upper()}", "0")

    assert conf.get("launch", name) == "0"


@pytest.mark.parametrize("name", DECLARED)
def test_each_option_stands_in_the_reference(name, checkout) -> None:
    page = (checkout / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")

    assert f"| `{name}` | {DECLARED[name]['type']} | {DECLARED[name]['default']} |" in page


def test_a_value_of_a_wrong_type_is_reported_by_airflow(monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW__LAUNCH__REPLACE_WAIT_S", "soon")

    with pytest.raises(AirflowConfigException, match="replace_wait_s"):
        conf.getfloat("launch", "replace_wait_s", fallback=1.0)
