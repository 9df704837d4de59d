"""`python -m airflow_provider_launch.pipelines`: check a pipeline, or run one step of it without Airflow."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_launch.pipelines.problems import PipelineError
from airflow_provider_launch.pipelines.validation import load
from airflow_provider_launch.specs.errors import LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 for a failure, 2 for an invalid pipeline."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "validate":
            return _validate(options)
        return _run_step(options)
    except PipelineError as error:
        return _show(error.problems)
    except (LaunchError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_launch.pipelines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("validate", help="show all problems of a file")
    run = commands.add_parser("run-step", help="run one step, and show the values that it returns")
    for command in (check, run):
        command.add_argument("file", type=Path, help="the pipeline file")
        command.add_argument(
            "--config", "-c", type=Path, help="a file with sections that override those of the pipeline"
        )
        command.add_argument("--parameters", "-p", type=Path, help="a YAML or JSON file with parameters")
        command.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a parameter; parsed as JSON if possible, else text",
        )
    run.add_argument("step", help="name of the step; a nested step with its parents, as in 'split/train'")
    run.add_argument("--data", type=Path, help="folder used instead of the catalog; the step runs in it")
    run.add_argument("--dry-run", action="store_true", help="show the request without launching it")
    return parser


def _validate(options: argparse.Namespace) -> int:
    from airflow_provider_launch.pipelines.dags import validate

    return _show(validate(options.file, options.config, parameters_file=options.parameters, params=_given(options)))


def _given(options: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set {text!r} must be NAME=VALUE")
        values[name] = yaml.safe_load(value)
    return values


def _show(problems: Any) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return 2 if problems else 0


def _run_step(options: argparse.Namespace) -> int:
    from airflow_provider_launch.pipelines.run_step import find_step, run_step

    values = _given(options)
    model = load(options.file, options.config, parameters_file=options.parameters)
    step, elements = find_step(model, options.step)
    code, returned = run_step(
        model, step, values, elements=elements, data_dir=options.data, is_dry=options.dry_run, show=print
    )
    if returned is not None:
        print(json.dumps(returned))
    return code


if __name__ == "__main__":
    sys.exit(main())
