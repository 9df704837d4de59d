"""Writes the generated files: `make gen`. A test compares them with the committed ones."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from airflow_provider_launch.schedulers.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

CHECKOUT = Path(__file__).resolve().parent.parent
MADE = "<!-- Made by `make gen` from the options' classes; edit those. -->"
INTRODUCTION = """\
The extra of a connection accepts the options of both tables of its scheduler; null means unset.
`cfg` of the operator accepts the options of the second table, and overrides the connection.
Unknown names are refused; the error suggests the closest name."""

MADE_OF_PIPELINES = "<!-- Made by `make gen` from the classes of pipelines; edit those. -->"
PIPELINES = """\
All fields of a [pipeline](../pipelines.md). For other spellings see [Migrate from magnus](../coming-from/magnus.md).
Unknown fields are refused; the error suggests the closest name."""

MADE_OF_CONFIG = "<!-- Made by `make gen` from tools/provider_info.py; edit that. -->"
CONFIGURATION = """\
Section `[launch]` of Airflow's configuration applies to a whole deployment: `AIRFLOW__LAUNCH__REPLACE_WAIT_S=120`, or
the same in `airflow.cfg`. `airflow config get-value launch replace_wait_s` shows the value in use.
A worker reads it when a task runs, a triggerer when it starts; use the same values everywhere."""

MADE_OF_VERSIONS = "<!-- Made by `make gen` from tools/versions.yaml; edit that. -->"
VERSIONS = """\
One release of this package supports all versions of Airflow and Python in this table.
Importing it with an older Airflow raises an error of one sentence. No other version is asked for at run time: where
versions differ, the package checks for each feature of Airflow.
`make versions` runs the tests on each version of Airflow before the newest, with the dependencies of its time."""
DEPENDENCIES = """\
## Dependencies

`pyproject.toml` has lower bounds, and an upper one for Airflow only. `make versions ARGS=--bounds` runs the tests of
each extra with the lowest and the newest versions.
{runs}
`constraints.txt` pins versions for the newest Airflow that fit all extras on each Python, together with the providers
amazon, celery, cncf.kubernetes, docker, fab, openlineage and postgres:

```sh
pip install "apache-airflow==$(airflow version)" "airflow-provider-launch[all]" -c constraints.txt
```"""
ENGINES = """\
## Engines

Other versions are expected to work; the tests were run on these, with cgroup v1. Cgroup v2, rootless Docker and
rootless Podman were not tried. `make versions ARGS=--engines`, as root on Debian, makes a root directory of each newer
Debian release and runs the tests of Slurm and Docker in it, and runs those of Kubernetes on the oldest version that is
promised; `ARGS="--engines trixie"` runs one of them."""
WEAKER = """\
## Weaker guarantees before Airflow 3.3

The [guarantees](guarantees.md) hold on every version in the table above, with these exceptions.
Everything else is the same: one app for each task, also after the loss of a worker or a triggerer, deferral, logs,
links, masks, and the cancel of a task that was killed or marked."""

DOCS = [
    "index.md",
    "quickstart.md",
    "operator.md",
    "app.md",
    "deferrable.md",
    "production.md",
    "security.md",
    *(info.page for info in BACKENDS.values()),
    "core.md",
    "plugins.md",
    "testing.md",
]


COMING_FROM = ["kubernetes-pod-operator", "docker-operator", "batch-operator", "sbatch", "torchx"]


def options_page() -> str:
    """Return the reference page of all options of all schedulers."""
    parts = [
        MADE,
        "# Options",
        INTRODUCTION,
    ]
    for info in BACKENDS.values():
        parts.append(f"## {info.name}")
        both = ((info.connection_options(), "connection only"), (info.launch_options(), "connection and `cfg`"))
        for options, where in both:
            parts.append(f"### {options.__name__}: {where}")
            parts.append((options.__doc__ or "").strip())
            parts.append("\n".join(_table(options)))
    return "\n\n".join(parts) + "\n"


def _table(options: Any) -> Iterator[str]:
    from airflow_provider_launch.util.types import get_type_name

    yield "| Option | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    helps = options.get_docstrings()
    hints = get_type_hints(options, include_extras=True)
    schema = options.as_runopts()
    for field in dataclasses.fields(options):
        name = field.metadata.get("cfg_key", field.name)
        type_ = schema.get(name).opt_type
        shown = get_type_name(type_)
        limits = "".join(f", {limit}" for limit in _limits(hints[field.name]))
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        if field.default_factory is not dataclasses.MISSING:
            default = f"`{field.default_factory()!r}`"
        text = " ".join(helps[name].split()).replace("|", "\\|")
        yield f"| `{name}` | {shown}{limits} | {default} | {text} |"


def _limits(hint: Any) -> Iterator[str]:
    """Return the bounds in a type hint, at any depth: `Annotated[int, Ge(0)] | None` gives `>= 0`."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    for part in get_args(hint):
        for name, sign in signs.items():
            if (bound := getattr(part, name, None)) is not None and dataclasses.is_dataclass(part):
                yield f"{sign} {bound}"
        yield from (limit for limit in _limits(part) if part is not hint)


def app_page() -> str:
    """Return the page about apps with new tables of fields; the rest of it is written by hand."""
    page = (CHECKOUT / "docs" / "app.md").read_text(encoding="utf-8")
    return re.sub(
        r"^(<!-- Fields of (\w+): .*-->\n\n)(?:\|.*\n)*",
        lambda found: found[1] + "\n".join(_fields(found[2])) + "\n",
        page,
        flags=re.MULTILINE,
    )


def _fields(name: str) -> Iterator[str]:
    from airflow_provider_launch import specs
    from airflow_provider_launch.util.docstrings import field_docstrings

    yield "| Field | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    cls = getattr(specs, name)
    helps = field_docstrings(cls)
    for field in dataclasses.fields(cls):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        shown = f"`{default}`" if isinstance(default, Enum) else f"`{default!r}`"
        if default in (dataclasses.MISSING, specs.MISSING):
            shown = "required"
        elif default == specs.NULL_RESOURCE:
            shown = "not stated"
        type_, text = field.type.replace("|", "\\|"), " ".join(helps[field.name].split())
        yield f"| `{field.name}` | {type_} | {shown} | {text} |"


def page_with_files(path: str) -> str:
    """Return a page with the current files of a plug-in; the rest of it is written by hand."""
    page = (CHECKOUT / path).read_text(encoding="utf-8")
    return re.sub(
        r"^(<!-- File (\S+): .*-->\n\n```\w+\n)(?:.*\n)*?(```\n)",
        lambda found: found[1] + (CHECKOUT / found[2]).read_text(encoding="utf-8") + found[3],
        page,
        flags=re.MULTILINE,
    )


EXAMPLE = "airflow_provider_launch/testing/example_scheduler.py"


def example_page() -> str:
    """Return the page with the whole example of a scheduler."""
    source = (CHECKOUT / EXAMPLE).read_text(encoding="utf-8")
    parts = [
        f"<!-- Made by `make gen` from {EXAMPLE}; edit that. -->",
        "# The example scheduler",
        "The whole source of the scheduler of [Adding a scheduler](../adding-a-scheduler.md); it is in the wheel.",
        f"````python\n{source}````",
    ]
    return "\n\n".join(parts) + "\n"


def demo_text() -> str:
    """Return the text for the word count of the demo: the documentation without code blocks."""
    pages = [(CHECKOUT / "docs" / page).read_text(encoding="utf-8") for page in DOCS]
    return re.sub(r"```.*?```\n", "", "\n".join(pages), flags=re.DOTALL)


def coming_page(page: str) -> str:
    """Return the page for users of another launcher with a new table of names; the rest is written by hand."""
    from airflow_provider_launch.specs.peers import peers

    text = (CHECKOUT / "docs" / "coming-from" / f"{page}.md").read_text(encoding="utf-8")
    rows = ["| Theirs | Here | |", "|---|---|---|"]
    for name, found in peers()[page].arguments.items():
        place = "none" if found.place == "none" else f"{_PLACES[found.place]} `{found.name}`"
        rows.append(f"| `{name}` | {place} | {found.note} |")
    return re.sub(
        r"^(<!-- Names of .*-->\n\n)(?:\|.*\n)*",
        lambda mark: mark[1] + "\n".join(rows) + "\n",
        text,
        flags=re.MULTILINE,
    )


_PLACES = {
    "cfg": "`cfg`:",
    "connection": "connection:",
    "operator": "operator:",
    "app": "`AppDef`:",
    "role": "`Role`:",
    "resource": "`Resource`:",
    "overlay": "[overlay](../overlays.md):",
}


def pipelines_page() -> str:
    """Return the reference page of all fields of pipelines."""
    from airflow_provider_launch.pipelines import executors, model

    parts = [MADE_OF_PIPELINES, "# Fields of pipelines", PIPELINES]
    parts += [
        "## The file",
        _described(
            model.PipelineModel,
            optional=("name",),
            renamed={"graph": "dag", "catalog_conn_id": ""},
            hidden=("folder", "file"),
        ),
    ]
    parts += ["## A graph", "Below `dag`, in `branch`, and in each of `branches`.", _described(model.Graph)]
    parts += ["## Every step", "In addition to `type`.", _described(model.Step, hidden=("name",))]
    kinds = {
        "task": model.TaskStep, "stub": model.StubStep, "success": model.SuccessStep, "fail": model.FailStep,
        "parallel": model.ParallelStep, "map": model.MapStep, "dag": model.DagStep,
        "conditional": model.ConditionalStep,
    }  # fmt: skip
    for kind, cls in kinds.items():
        parts += [f"## {kind}", " ".join((cls.__doc__ or "").split())]
        base = [field.name for field in dataclasses.fields(model.Step)]
        table = _described(cls, hidden=base)
        parts += [table] if table.count("\n") > 1 else []
    parts += ["## catalog", _described(model.Catalog), "## returns", _described(model.Return)]
    parts += ["## executor", _described(model.ExecutorSection), "### config", _described(executors.ExecutorSettings)]
    rows = [
        f"| `{kind}` | `{backend.name}` | `{backend.default_conn_id}` | "
        f"{'needed' if backend.in_containers else 'none'} | "
        f"{'not needed' if backend.shares_files else 'needed for a catalog'} |"
        for kind, backend in executors.BACKENDS.items()
    ]
    parts += [
        "### Types",
        "\n".join(["| Type | Scheduler | Connection | `image` | `data_dir` |", "|---|---|---|---|---|", *rows]),
    ]
    parts.append("`mocked` runs only its `patches`. Others are entry points of `airflow_provider_launch.executors`.")
    return "\n\n".join(parts) + "\n"


def _described(
    cls: Any, hidden: Sequence[str] = (), optional: Sequence[str] = (), renamed: Mapping[str, str] | None = None
) -> str:
    from airflow_provider_launch.util.docstrings import field_docstrings

    helps = field_docstrings(cls)
    lines = ["| Field | Default | Meaning |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        name = (renamed or {}).get(field.name, field.name)
        if not name or field.name in (*hidden, "place") or field.name not in helps:
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        is_required = default is dataclasses.MISSING and name not in optional
        shown = (
            "required"
            if is_required
            else ""
            if default in (None, "", (), {}, dataclasses.MISSING) or dataclasses.is_dataclass(default)
            else f"`{default!r}`"
        )
        text = " ".join(helps[field.name].split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {shown} | {text} |")
    return "\n".join(lines)


def provider_info_document() -> str:
    """Return the provider info that Airflow reads."""
    text: str = _neighbour("provider_info").provider_info_document()
    return text


def configuration_page() -> str:
    """Return the reference page of section `[launch]` of Airflow's configuration."""
    rows = [
        f"| `{name}` | {option['type']} | {option['default']} | {option['description']} |"
        for name, option in _neighbour("provider_info").config_options().items()
    ]
    table = "\n".join(["| Option | Type | Default | Meaning |", "|---|---|---|---|", *rows])
    return f"{MADE_OF_CONFIG}\n\n# Configuration\n\n{CONFIGURATION}\n\n{table}\n"


MADE_OF_COMMANDS = "<!-- Made by `make gen` from airflow_provider_launch/cli/commands.py; edit that. -->"


def commands_page() -> str:
    """Return the reference page of the commands."""
    from airflow_provider_launch.cli.commands import COMMANDS

    parts = [MADE_OF_COMMANDS, "# Commands", "[Command line](../cli.md) explains how they work together."]
    for command in COMMANDS.values():
        parts += [f"## launch {command.name}", f"{command.help[:1].upper()}{command.help[1:]}."]
        parts += [command.description] if command.description else []
        rows = ["| Argument | Meaning |", "|---|---|"]
        for argument in command.arguments:
            value = argument.keywords.get("metavar") or "|".join(argument.keywords.get("choices", ()))
            takes = value if argument.keywords.get("action") != "store_true" else ""
            names = ", ".join(argument.names) if argument.names[0].startswith("-") else ""
            shown = f"{names} {takes}".strip().replace("|", "\\|")
            rows.append(f"| `{shown}` | {argument.keywords['help']} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def versions_page() -> str:
    """Return the page of supported versions, from `versions.yaml`."""
    found = _neighbour("versions").matrix()
    rows = [
        f"| {row['version']} | {row['promise']} | {row.get('patch', '')} | {', '.join(row.get('pythons', []))} |"
        for row in found["airflow"]
    ]
    supported = [row["version"] for row in found["airflow"] if row["promise"] == "supported"]
    weaker = [
        f"| {one['what']} | {_older(one['until'], supported)} | {one['instead'].strip()} | {one['why']} |"
        for one in found["weaker"]
    ]
    head = ["| Airflow | Promise | Tested with | Pythons |", "|---|---|---|---|", *rows]
    table = ["| Topic | Airflow | Difference | Reason |", "|---|---|---|---|", *weaker]
    engines = ["| Engine | Version | Tests that were run |", "|---|---|---|", *map(_engine_row, found["engines"])]
    runs = {name: text.strip() for name, text in found["runs"].items()}
    airflow = [VERSIONS, runs["airflow"], "", runs["pythons"]]
    dependencies = DEPENDENCIES.format(runs=runs["bounds"])
    parts = [airflow, head, [ENGINES], engines, [dependencies], [WEAKER], table]
    return "\n".join([MADE_OF_VERSIONS, "", "# Versions", "", *itertools.chain(*([*part, ""] for part in parts))])


def _engine_row(row: Mapping[str, str]) -> str:
    """Return the row of the table for an engine of `versions.yaml`."""
    found = {"every": "each change: {}", "once": "once: {}"}
    (run,) = (text.format(row[key].strip()) for key, text in found.items() if key in row)
    return f"| {row['engine']} | {row['version']} | {run} |"


def _older(until: str, supported: Sequence[str]) -> str:
    """Return the supported versions up to this one, the oldest first."""
    return ", ".join(reversed(supported[supported.index(until) :]))


def _neighbour(name: str) -> Any:
    sys.path.insert(0, str(CHECKOUT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


GENERATED: dict[str, Callable[[], str]] = {
    **{path: functools.partial(page_with_files, path) for path in ("docs/adding-a-queue.md", "docs/plugins.md")},
    "docs/reference/example-scheduler.md": example_page,
    "airflow_provider_launch/provider_info.json": provider_info_document,
    "docs/app.md": app_page,  # before the demo's text, which contains it
    **{f"docs/coming-from/{page}.md": functools.partial(coming_page, page) for page in COMING_FROM},
    "docs/reference/commands.md": commands_page,
    "docs/reference/configuration.md": configuration_page,
    "docs/reference/options.md": options_page,
    "docs/reference/pipelines.md": pipelines_page,
    "docs/versions.md": versions_page,
    "example_dags/launch_wordcount.md": demo_text,
}


def main() -> None:
    """Write the changed files and print their names."""
    for path, make in GENERATED.items():
        file, text = CHECKOUT / path, make()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            print(f"{path}: current")
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(f"{path}: written")


if __name__ == "__main__":
    sys.exit(main())
