"""Code that backends share stands in the kit once: a rule that a backend words for itself is soon another rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import airflow_provider_launch
from airflow_provider_launch.schedulers.backends import BACKENDS

FOLDER = Path(airflow_provider_launch.__file__).parent / "schedulers"

KIT = {
    "requests": {"AppRequest", "RoleRequest", "common_fields", "request_from_json"},
    "texts of requests": {"format_app", "format_role"},
    "options and checks": {"BuiltinScheduler", "spec_hash", "refuse_equal_port_variables"},
    "variables of a replica": {"replica_env"},
    "inherited variables": {"inherited_env"},
    "ports": {"assign_ports"},
    "overlays": {"overlays_of", "patched", "refuse_changes"},
    "claims": {"refuse_other_spec", "deleted_meanwhile"},
    "phases and their states": {"Phase", "PHASE_STATES"},
    "retries": {"decide"},
    "responses": {"app_response"},
    "error files": {"add_error_files"},
    "texts of ends": {"ReplicaEnd", "ending_text"},
    "the message of a failure": {"failure_message"},
    "attempts in one log": {"read_attempts"},
    "logs in files": {"file_log"},
    "results": {"parse_result", "RESULT_LIMIT_BYTES"},
    "errors of HTTP": {"NotFoundError", "TakenError", "server_message"},
}
"""Each part of the kit, and names that a backend imports if it uses the part."""

COMMON_FIELDS = "`common_fields` has them"
FILES = "its logs are files"
IN_CONTAINERS = "its logs are kept by an engine"
INSTEAD = {
    "local": {
        "requests": "its record is read by the supervisor, in a bare interpreter, so each replica is written out there",
        "ports": "processes share the ports of the host, so the supervisor reserves them when the app starts",
        "overlays": "a process has no native request",
        "attempts in one log": FILES,
        "errors of HTTP": "it has no server",
    },
    "docker": {"inherited variables": COMMON_FIELDS, "logs in files": IN_CONTAINERS},
    "kubernetes": {
        "inherited variables": COMMON_FIELDS,
        "phases and their states": "the states of a Job and its pods decide, and only retries need phases",
        "error files": "the text is a part of the pod, and comes with it",
        "logs in files": IN_CONTAINERS,
    },
    "aws_batch": {
        "requests": "its record is a part of the job definition, which is limited to 24 KB: the rest is derived",
        "overlays": "its overlay is an option for all roles",
        "retries": "AWS Batch decides on retries, except those of several nodes",
        "attempts in one log": "its cursor also covers the lines that CloudWatch lists late",
        "logs in files": IN_CONTAINERS,
        "errors of HTTP": "botocore has its own",
    },
    "slurm": {
        "inherited variables": COMMON_FIELDS,
        "ports": "the job's script chooses free ports on the nodes",
        "overlays": "its overlay is an option for all roles, of options of sbatch",
        "phases and their states": "the words of squeue and its own records decide",
        "retries": "the job's script decides, also while the launcher is away",
        "the message of a failure": "several words of Slurm end an app, and each has its own text",
        "attempts in one log": FILES,
        "errors of HTTP": "it has no server",
    },
}
"""Why a backend does not use a part."""

COPIES = {
    "a request": r"^class \w+Request(\((NamedTuple|StoredRequest|Generic\[\w+\])\))?:",
    "the first line of a request": r", time limit \{",
    "the variables of a replica": r"\"LAUNCH_(APP_ID|ROLE|NUM_REPLICAS)\":",
    "the name of a port's variable": r"LAUNCH_PORT_\{",
    "equal names of port variables": r"would share the variable",
    "free ports": r"for port in \w+\.port_map\.values\(\)",
    "an app of another definition": r"with another definition",
    "an app deleted meanwhile": r"deleted while it was submitted; nothing",
    "states of phases": r"Phase\.[A-Z]+: AppState\.",
    "a response": r"DescribeAppResponse\(\n",
    "error texts": r"\.structured_error_msg = ",
    "out of memory": r"out of memory \(exit",
    "stopped from outside": r"before its program was done",
    "overlays in metadata": r"\b(get_overlay|apply_overlay)\(",
}
"""A pattern for each part of the kit, which finds copies of it in backends."""

OWN = {
    ("local/request.py", "a request"): INSTEAD["local"]["requests"],
    ("aws_batch/request.py", "a request"): INSTEAD["aws_batch"]["requests"],
    ("kubernetes/containers.py", "out of memory"): "the end of a container next to the program",
    ("kubernetes/status.py", "error texts"): INSTEAD["kubernetes"]["error files"],
}
"""Copies with a reason."""

backends = pytest.mark.parametrize("backend", BACKENDS)


def names_used_by(backend: str) -> set[str]:
    """Return the names that the modules of a backend import from outside their folder."""
    own = f"airflow_provider_launch.schedulers.{backend}"
    found = set()
    for path in (FOLDER / backend).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(own):
                found |= {alias.name for alias in node.names}
    return found


@backends
def test_it_uses_each_part_of_the_kit_or_has_a_reason(backend: str) -> None:
    used = names_used_by(backend)
    reasons = INSTEAD[backend]

    assert {part for part, names in KIT.items() if not names <= used} == set(reasons)


@backends
def test_it_has_no_copy_of_the_kit(backend: str) -> None:
    found = {
        (path.relative_to(FOLDER).as_posix(), what)
        for path in (FOLDER / backend).glob("*.py")
        for what, looks in COPIES.items()
        if re.search(looks, path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert found == {(file, what) for file, what in OWN if file.startswith(f"{backend}/")}


def test_each_pattern_of_a_copy_fits_the_kit() -> None:
    """A pattern that no longer fits the original would find no copy either."""
    shared = [*FOLDER.glob("*.py"), *(FOLDER / "_kit").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in shared)

    assert [what for what, looks in COPIES.items() if not re.search(looks, text, re.MULTILINE)] == []
