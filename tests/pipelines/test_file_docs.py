"""The texts of pipeline files on the page of a DAG."""

from __future__ import annotations

import pytest
import structlog

from airflow_provider_launch.pipelines import dag_from_file, load, load_pipelines
from airflow_provider_launch.pipelines.file_docs import LARGEST_SHOWN, docs_of_files, masked_yaml

FILE = """# the nightly one
parameters: {api_token: initial, day: mönday}
dag:
  start_at: a
  steps:
    a: {type: dag, dag_definition: parts/part.yaml, next: success}
"""
PART = "dag: {start_at: b, steps: {b: {type: task, command_type: shell, command: 'echo ```', next: success}}}\n"
SHOWN = f"""`nightly.yaml`:

```yaml
{FILE.replace("initial", "***").rstrip()}
```

`parts/part.yaml`:

````yaml
{PART.rstrip()}
````
"""


@pytest.fixture
def module(write):
    write(FILE, "files/nightly.yaml")
    write(PART, "files/parts/part.yaml")
    return write(
        """
        # airflow dag
        from airflow_provider_launch.pipelines import load_pipelines

        load_pipelines("files", globals())
        """,
        "module.py",
    )


def test_a_dag_shows_its_file_and_the_included_ones(module, tmp_path) -> None:
    """Airflow's Code tab shows the Python file only."""
    from airflow.dag_processing.processor import DagFileParseRequest, _parse_file

    request = DagFileParseRequest(file=str(module), bundle_path=tmp_path, bundle_name="tests", callback_requests=[])
    found = _parse_file(request, structlog.get_logger())

    (dag,) = found.serialized_dags
    assert dag.data["dag"]["doc_md"] == SHOWN
    # Airflow has no way to show another file than the one that it imports.
    assert dag.data["dag"]["fileloc"] == str(module)


def test_documentation_of_the_author_is_kept(module, tmp_path) -> None:
    dag = dag_from_file(tmp_path / "files" / "nightly.yaml", doc_md="mine")

    assert dag.doc_md == "mine"


def test_the_text_has_no_path_of_the_host(module, tmp_path) -> None:
    """Another folder for each version of a bundle would make a version of the DAG."""
    dag = dag_from_file(tmp_path / "files" / "nightly.yaml")

    assert dag.doc_md.startswith("`nightly.yaml`:")
    assert str(tmp_path) not in dag.doc_md


def test_the_start_of_a_task_reads_no_documentation(module, tmp_path, monkeypatch) -> None:
    for name, value in (("DAG", "nightly"), ("TASK", "a.b")):
        monkeypatch.setenv(f"_AIRFLOW_PARSING_CONTEXT_{name}_ID", value)

    (dag,) = load_pipelines("files", {"__file__": str(module)})

    assert dag.doc_md is None


def test_a_file_that_is_too_large_is_named(write) -> None:
    path = write(f"# {'x' * LARGEST_SHOWN}\n" + PART)

    assert dag_from_file(path).doc_md == f"`pipeline.yaml` is too large to show ({len(path.read_text())} characters).\n"


@pytest.mark.parametrize(
    ("content", "error"),
    [(None, "FileNotFoundError"), (b"\xff", "UnicodeDecodeError"), (b"a: [", "ParserError")],
    ids=["gone", "not text", "not YAML"],
)
def test_a_file_that_has_changed_since_it_was_read_is_named(module, tmp_path, content, error) -> None:
    """The other files are shown, and the next parse reports it."""
    model = load(tmp_path / "files" / "nightly.yaml")
    part = tmp_path / "files" / "parts" / "part.yaml"
    if content is None:
        part.unlink()
    else:
        part.write_bytes(content)

    shown = docs_of_files(tmp_path / "files" / "nightly.yaml", model)

    assert shown == f"{SHOWN.partition('`parts')[0]}`parts/part.yaml` cannot be shown: {error}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("env: {PASSWORD: x y, other: z}\n", "env: {PASSWORD: ***, other: z}\n"),
        ("env:\n  MY_KEY: |\n    a\n    b\n  other: z\n", "env:\n  MY_KEY: ***\n  other: z\n"),
        ("tokens: [a, b]  # c\nq: 1\n", "tokens: ***  # c\nq: 1\n"),
        ("ä: ü\nurl: 'postgres://u:pw@h/d'\n", "ä: ü\nurl: 'postgres://u:***@h/d'\n"),
        ("a: &x {token: t}\nb: *x\npassword: *x\n", "a: ***\nb: *x\npassword: *x\n"),
        ("args: [--password, 'x y', \"TOKEN=a b\", -v]\n", "args: [--password, ***, TOKEN=***, -v]\n"),
        ("args:\n- --api-key\n- |\n  x\n- y\n", "args:\n- --api-key\n- ***\n- y\n"),
        ("env: [{name: PASSWORD, value: x}, {name: A, value: x}]\n", "env: [{name: PASSWORD, value: ***}, {name: A, value: x}]\n"),
        ("# password: x\na: 'b # c'  # token=x #1\n# - DB_KEY: y", "# password: ***\na: 'b # c'  # token=*** #1\n# - DB_KEY: ***"),
        ("secrets: {config: {password: x}, TOKEN: name}\n", "secrets: {config: {password: ***}, TOKEN: name}\n"),
        ("? {password: x}\n: y\n", "? {password: ***}\n: y\n"),
        ("list: [{key: DB_PASS, value: hush}]\n", "list: [{key: DB_PASS, value: ***}]\n"),
        ("text: |\n  a: b\n  db_pass: |\n    hush\n", "text: |\n  a: b\n  db_pass: |\n    ***\n"),
        ("list: [{Key: DB_PASS, Value: hush}]\n", "list: [{Key: DB_PASS, Value: ***}]\n"),
        ("command: 'export DB_PASS=''hush'' && run'\n", 'command: "export DB_PASS=\'***\' && run"\n'),
        ("command: >\n  run --password\n  hush\nb: c\n", 'command: "run --password ***\\n"\nb: c\n'),
        ("parameters: {secrets: hush}\n", "parameters: {secrets: ***}\n"),
        ("parameters: {secrets: {db: x, list: [x]}}\n", "parameters: {secrets: ***}\n"),
        ("list: [--password, x, {a: b}, 1]\n", "list: [--password, ***, {a: b}, 1]\n"),
        # Names of secrets are none.
        ("secrets: {TOKEN: my_variable}\nlist: {secrets: [token]}\n", None),
        ("token:\nempty: {password: }\n", None),
    ],
)  # fmt: skip
def test_secrets_of_a_file_are_masked(text: str, expected: str | None) -> None:
    assert masked_yaml(text) == (expected or text)
