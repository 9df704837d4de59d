"""Folders of apps below a root, as local processes and Slurm have them, and damage to them."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def unreadable(root: Path) -> Iterator[None]:
    """Replace the root by a link to itself; a missing root would mean that no app was launched yet."""
    away = root.with_name("away")
    if is_there := root.exists():
        root.rename(away)
    root.symlink_to(root)
    try:
        yield
    finally:
        root.unlink()
        if is_there:
            away.rename(root)


@contextlib.contextmanager
def damaged(root: Path, app_id: str) -> Iterator[None]:
    """Replace the record of the app by another document."""
    record = root / "apps" / app_id / "app.json"
    text = record.read_bytes()
    record.write_text('[{"request": 1}]')
    try:
        yield
    finally:
        record.write_bytes(text)


@contextlib.contextmanager
def inflated(root: Path, app_id: str) -> Iterator[None]:
    """Let the record of the app name a billion replicas."""
    record = root / "apps" / app_id / "app.json"
    text = record.read_bytes()
    record.write_bytes(re.sub(rb'("num_replicas": ?)[0-9]+', rb"\g<1>1000000000", text))
    try:
        yield
    finally:
        record.write_bytes(text)


@contextlib.contextmanager
def forged(root: Path, app_id: str, *names: str) -> Iterator[None]:
    """Make a folder that looks like that of an app, with nonsense in its files."""
    folder = root / "apps" / app_id
    folder.mkdir(mode=0o700)
    for name in names:
        (folder / name).write_bytes(b"\xff\0{[\n" * 50)
    (folder / "end").symlink_to("SUCCEEDED,never,9\nx")
    try:
        yield
    finally:
        shutil.rmtree(folder)


def left(root: Path, app_id: str) -> int:
    """Return the number of folders of the app, including those that are being created or removed."""
    return sum(path.name.startswith(app_id) for path in root.glob("*/*"))


def program_that_prints_its_args(folder: Path) -> str:
    """Return the path of a program with blanks in its name, which prints each argument in a line."""
    program = folder / "a directory" / "prints its args"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n")
    program.chmod(0o755)
    return str(program)
