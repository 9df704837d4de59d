"""`python -m airflow_provider_launch.pipelines`: check a pipeline, or run it or a part of it without Airflow."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_launch.pipelines.problems import PipelineError
from airflow_provider_launch.pipelines.reader import read_parameters
from airflow_provider_launch.pipelines.validation import load, load_document, read
from airflow_provider_launch.specs.errors import LaunchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 for a failure, 2 for an invalid pipeline, 130 if it was interrupted."""
    options = _parser().parse_args(arguments)
    try:
        return int(_COMMANDS[options.command](options))
    except PipelineError as error:
        return _show(error.problems)
    except (LaunchError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        more = f"; to continue: run {options.file} --resume" if options.command == "run" else ""
        print(f"interrupted; its step was cancelled{more}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_launch.pipelines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("validate", help="show all problems of a file")
    whole = commands.add_parser("run", help="run a pipeline as local processes, one step after the other")
    run = commands.add_parser("run-step", help="run one step, and show the values that it returns")
    function = commands.add_parser("run-function", help="run a function, and show the values that it returns")
    notebook = commands.add_parser("run-notebook", help="run a notebook, and show the values that it returns")
    for command in (check, whole, run):
        command.add_argument("file", type=Path, help="the pipeline file")
    function.add_argument("name", help="module.function; modules are found from the current folder")
    notebook.add_argument("name", help="path of the notebook")
    for command in (function, notebook):
        command.add_argument("--returns", action="append", metavar="NAME", help="a value to return")
        command.add_argument("--output", default="", help="for a notebook: where to write it with its outputs")
    whole.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="continue the last run, or that of a folder: run only the steps that did not succeed",
    )
    for command in (check, whole, run, function, notebook):
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


def _run(options: argparse.Namespace) -> int:
    from airflow_provider_launch.pipelines.desk import DeskRun, new_run, stored_run

    given = _given(options)
    files = {"config": options.config, "parameters": options.parameters}
    folder = None if options.resume is None else _run_to_resume(options)
    if folder is not None:
        # Otherwise a resumed run would have other parameters.
        stored = stored_run(folder)
        given = {**stored.get("parameters", {}), **given}
        files = {name: path or stored.get("options", {}).get(name) for name, path in files.items()}
    model = load(options.file, files["config"], parameters_file=files["parameters"], params=given)
    folder = folder or new_run(model.name)
    print(f"run {folder}")
    used = {name: str(Path(path).resolve()) for name, path in files.items() if path}
    values = DeskRun(model, folder, options=used).run(given)
    if values is None:
        print(f"the pipeline failed; to run the failed step and those after it: run {options.file} --resume")
        return 1
    print(json.dumps(values))
    return 0


def _run_to_resume(options: argparse.Namespace) -> Path:
    from airflow_provider_launch.pipelines.desk import is_run, runs_of

    # The parameters of the run, which the checks need, are in its folder.
    model, problems = read(options.file, options.config, options.parameters, {})
    if model is None:
        raise PipelineError(problems)
    folder = Path(options.resume).resolve() if options.resume else next(runs_of(model.name), None)
    if folder is None:
        raise ValueError(f"there is no run of {model.name!r} to resume; start one without --resume")
    if not is_run(folder):
        raise ValueError(f"{str(folder)!r} is not the folder of a run; `run` shows it in its first line")
    return folder


def _run_one(options: argparse.Namespace) -> int:
    """Run a function or a notebook as a pipeline of one step."""
    from airflow_provider_launch.pipelines.run_step import find_step, run_step

    kind = {"run-function": "python", "run-notebook": "notebook"}[options.command]
    step = {"type": "task", "command_type": kind, "command": options.name, "next": "success"}
    step |= {"returns": options.returns} if options.returns else {}
    step |= {"notebook_output_path": options.output} if options.output else {}
    data: dict[str, Any] = {"dag": {"start_at": "run", "steps": {"run": step}}}
    if options.parameters is not None:
        data["parameters"], problems = read_parameters(options.parameters)
        if problems:
            raise PipelineError(problems)
    model = load_document(data, Path.cwd(), "desk", _given(options), options.config)
    task, _ = find_step(model, "run")
    code, returned = run_step(model, task, _given(options), elements=[])
    if returned is not None:
        print(json.dumps(returned))
    return code


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


_COMMANDS = {
    "validate": _validate,
    "run": _run,
    "run-step": _run_step,
    "run-function": _run_one,
    "run-notebook": _run_one,
}


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # Otherwise the app of a step would run on.
    signal.signal(signal.SIGTERM, _interrupt)
    # Python's handler would not run in a process of a pool that waits for a lock.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    sys.exit(main())
