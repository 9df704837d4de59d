"""Checks what a release would publish: `make release-check`. Needs the network.

Arguments: names of steps; none: all of them. The files are in `.build/release`. A step that could not check something
has failed. The step `extras` needs the oldest and the newest Python that are supported: from PATH, pyenv or uv, which
installs a missing one. A host that can have neither rehearses with its own Python: `RELEASE_PYTHON=3.11`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from versions import interpreter, matrix

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHECKOUT = Path(__file__).resolve().parent.parent
OUT = CHECKOUT / ".build" / "release"
PACKAGE = "airflow_provider_launch"
EPOCH = "1767225600"
"""The date in the archives: two builds of one commit have equal bytes."""
_SMOKE = """
import importlib, json, sys
import airflow_provider_launch.operators.launch, airflow_provider_launch.sensors.launch
from airflow_provider_launch.cli.main import main
from airflow_provider_launch.schedulers.backends import BACKENDS
for name in sys.argv[1:]:
    importlib.import_module(name)
for info in BACKENDS.values():
    info.connection_options(), info.launch_options()
sys.exit(main(["options", "--json"]))
"""


class ReleaseError(Exception):
    """A check has failed; the text names the fix."""


def run(*command: str | Path, **how: Any) -> str:
    """Return stdout of a command.

    Raises:
        ReleaseError: it has failed; the text has its output.
    """
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **{"cwd": CHECKOUT, **how})
    if done.returncode:
        raise ReleaseError(
            f"{' '.join(map(str, command[:6]))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def tool(name: str, *arguments: str | Path, source: str = "") -> str:
    """Run a program of a package in an environment of its own: many of them do not fit to those of Airflow."""
    return run(uv(), "tool", "run", "--from", source or name, name, *arguments)


def uv() -> str:
    """Return the path of uv."""
    return shutil.which("uv") or str(CHECKOUT / ".build" / "venv" / "bin" / "uv")


def project() -> Mapping[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: Mapping[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def version() -> str:
    """Return the version of the checkout."""
    text = (CHECKOUT / PACKAGE / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{PACKAGE}/__init__.py has no __version__")
    return found[1]


# ---- wheel and sdist -----------------------------------------------------------------------------------------------


def built() -> list[Path]:
    """Return wheel and sdist of the first build; build them if they are missing."""
    found = sorted((OUT / "dist").glob("*"))
    return found or _build(OUT / "dist")


def _build(folder: Path) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", folder)
    run(*command, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    return sorted(folder.glob("*"))


def check_builds() -> str:
    """Build twice, and compare the bytes."""
    first, second = ([*map(_sum_of, _build(OUT / name))] for name in ("dist", "again"))
    shutil.rmtree(OUT / "again")
    if first != second:
        raise ReleaseError(f"two builds of the same files differ:\n{first}\n{second}")
    (OUT / "SHA256SUMS").write_text("".join(f"{line}\n" for line in first), encoding="utf-8")
    return "\n".join(first)


def _sum_of(path: Path) -> str:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"


def check_wheel() -> str:
    """Check the archives with the programs that an index runs, and the content of the wheel."""
    archives = built()
    wheel = next(path for path in archives if path.suffix == ".whl")
    tool("twine", "check", "--strict", *archives)
    # The module is typed, and its examples are data next to it.
    tool("check-wheel-contents", "--toplevel", PACKAGE, wheel)
    tool("validate-pyproject", CHECKOUT / "pyproject.toml", source="validate-pyproject[all]")
    return f"{wheel.name}: twine, check-wheel-contents, validate-pyproject"


def check_metadata() -> str:
    """Check the version, the changelog, the URLs and the provider info."""
    found = version()
    problems = [*_metadata_problems(found)]
    if problems:
        raise ReleaseError("\n".join(problems))
    return f"version {found}"


def _metadata_problems(found: str) -> Iterator[str]:
    import jsonschema
    from airflow import __file__ as airflow

    for path in built():
        if f"-{found}" not in path.name:
            yield f"{path.name} is not of version {found}"
    changelog = (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    if heading is None or heading[1] != found:
        yield f"the newest heading of CHANGELOG.md is not {found}; run towncrier build"
    if rest := sorted(path.name for path in (CHECKOUT / "changelog.d").glob("*.md") if path.name != "README.md"):
        yield f"changelog.d still has {', '.join(rest)}; run towncrier build"
    tags = run("git", "tag", "--points-at", "HEAD").split() if (CHECKOUT / ".git").exists() else []
    if tags and f"v{found}" not in tags:
        yield f"this commit has the tags {', '.join(tags)}, and not v{found}"
    for name in ("Changelog", "Documentation", "Issues", "Source"):
        if not str(project()["urls"].get(name, "")).startswith("https://"):
            yield f"pyproject.toml has no URL {name}"
    wheel = next(path for path in built() if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        info = json.loads(archive.read(f"{PACKAGE}/provider_info.json"))
    schema = json.loads((Path(airflow).parent / "provider_info.schema.json").read_text(encoding="utf-8"))
    yield from (f"provider info: {error.message}" for error in jsonschema.Draft7Validator(schema).iter_errors(info))


# ---- environments --------------------------------------------------------------------------------------------------


def check_extras() -> str:
    """Install the wheel with each extra into an empty environment, with the lowest and the newest dependencies."""
    wheel = next(path for path in built() if path.suffix == ".whl")
    supported = [row for row in matrix()["airflow"] if row["promise"] == "supported"]
    oldest, newest = supported[-1]["pythons"][0], supported[0]["pythons"][-1]
    if rehearsal := os.environ.get("RELEASE_PYTHON"):
        oldest = newest = rehearsal
    extras = project()["optional-dependencies"]
    problems = []
    for minor, resolution in ((oldest, "lowest-direct"), (newest, "highest")):
        try:
            python = _python(minor)
        except ReleaseError as error:
            problems.append(f"not tested: all extras with Python {minor}, {resolution}: {error}")
            continue
        for extra in ("", *extras):
            try:
                _check_extra(wheel, extra, python, resolution)
            except ReleaseError as error:
                problems.append(f"extra {extra or 'none'}, Python {minor}, {resolution}: {error}")
    if problems:
        raise ReleaseError("\n".join(problems))
    return f"none, {', '.join(extras)}; Python {oldest} and {newest}{' (a rehearsal)' if rehearsal else ''}"


def _python(minor: str) -> str:
    """Return the Python of a minor version; uv installs it if this host has none."""
    found = interpreter(minor)
    try:
        run(uv(), "python", "find", found)
    except ReleaseError:
        run(uv(), "python", "install", minor)
    return found


def _check_extra(wheel: Path, extra: str, python: str, resolution: str) -> None:
    home = OUT / "env"
    run(uv(), "venv", "--quiet", "--clear", "--python", python, home)
    program = home / "bin" / "python"
    named = f"{wheel}[{extra}]" if extra else str(wheel)
    run(uv(), "pip", "install", "--quiet", "--python", program, "--resolution", resolution, named)
    run(uv(), "pip", "check", "--python", program)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTHON"))}
    # Away from the checkout, whose module would be found first.
    run(program, "-W", "ignore", "-c", _SMOKE, cwd=home, env={**env, "AIRFLOW_HOME": str(home / "airflow")})
    run(home / "bin" / "launch", "--version", cwd=home, env=env)
    shutil.rmtree(home)


def check_bill() -> str:
    """Write the bill of materials of the package with all extras."""
    program = _environment_of_all()
    bill = OUT / "sbom.cdx.json"
    tool(
        "cyclonedx-py",
        "environment",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        bill,
        program,
        source="cyclonedx-bom",
    )
    found = json.loads(bill.read_text(encoding="utf-8"))
    names = {component["name"] for component in found.get("components", ())}
    if "airflow-provider-launch" not in names:
        raise ReleaseError(f"{bill} does not list the package")
    return f"{bill.relative_to(CHECKOUT)}: {len(names)} components"


def check_audit() -> str:
    """Search all dependencies for known vulnerabilities; an audit that could not be done is a failure."""
    program = _environment_of_all()
    frozen = run(uv(), "pip", "freeze", "--python", program)
    # The package itself is not published yet.
    needs = [line for line in frozen.splitlines() if not line.startswith("airflow-provider-launch")]
    listed = OUT / "audited.txt"
    listed.write_text("\n".join(needs) + "\n", encoding="utf-8")
    # --strict: a dependency that was skipped is an error.
    text = tool("pip-audit", "--strict", "--no-deps", "--disable-pip", "--format", "json", "-r", listed)
    audited = json.loads(text)["dependencies"]
    if len(audited) != len(needs):
        raise ReleaseError(f"{len(audited)} of {len(needs)} dependencies were audited")
    return f"{len(audited)} dependencies have no known vulnerability"


def _environment_of_all() -> Path:
    """Return the Python of an environment with the wheel and all extras, as `constraints.txt` pins them."""
    home = OUT / "all"
    program = home / "bin" / "python"
    wheel = next(path for path in built() if path.suffix == ".whl")
    run(uv(), "venv", "--quiet", "--clear", "--python", sys.executable, home)
    pins = ("--constraint", CHECKOUT / "constraints.txt")
    run(uv(), "pip", "install", "--quiet", "--python", program, f"{wheel}[all]", *pins)
    return program


def check_licences() -> str:
    """Check that each file has a licence."""
    tool("reuse", "--root", CHECKOUT, "lint", "--quiet")
    return "each file has a licence (REUSE)"


STEPS: Mapping[str, Callable[[], str]] = {
    "builds": check_builds,
    "wheel": check_wheel,
    "metadata": check_metadata,
    "licences": check_licences,
    "extras": check_extras,
    "bill": check_bill,
    "audit": check_audit,
}


def main(names: Sequence[str]) -> int:
    """Run the steps, show their results, and return 1 if one failed."""
    if unknown := sorted({*names} - {*STEPS}):
        print(f"unknown step {unknown[0]}; there are {', '.join(STEPS)}")
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names or STEPS:
        print(f"=== {name}", flush=True)
        try:
            print(STEPS[name](), flush=True)
        except ReleaseError as error:
            failed.append(name)
            print(f"FAILED: {error}", flush=True)
    print(f"=== failed: {', '.join(failed)}" if failed else "=== all checks passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
