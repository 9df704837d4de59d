"""Artifacts and metadata of a run in the result of its app: `result["artifacts"]`, `result["metadata"]`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_launch.settings import ENV_LAUNCH_RESULT_PATH

log = logging.getLogger(__name__)

_LIMIT_BYTES = 4096
"""Maximum bytes of a result that a scheduler returns."""


class ResultFile:
    """The document at `LAUNCH_RESULT_PATH`; does nothing in replicas without this variable."""

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object] | None) -> None:
        """Add `artifacts[name]`: `{"path": ..., "metadata": {...}}`."""
        self._add("artifacts", {name: {"path": path, **({"metadata": dict(metadata)} if metadata else {})}})

    def add_metadata(self, values: Mapping[str, object]) -> None:
        """Add the values to `metadata`."""
        self._add("metadata", values)

    def _add(self, section: str, values: Mapping[str, object]) -> None:
        path = os.environ.get(ENV_LAUNCH_RESULT_PATH)
        if not path:
            return
        try:
            _write(Path(path), _extended(_read(Path(path)), section, values))
        except (OSError, ValueError) as error:
            # The records in the backends are complete; the result is only a copy for the task.
            log.warning("%s cannot be added to the result of the app: %s", ", ".join(values), error)


def _extended(document: dict[str, Any], section: str, values: Mapping[str, object]) -> str:
    kept = document.setdefault(section, {})
    if not isinstance(kept, dict):
        raise ValueError(f"it already has another {section!r}")  # noqa: TRY004 - the text is wrong, not its type
    kept.update(values)
    text = json.dumps(document, default=str)
    if len(text.encode()) > _LIMIT_BYTES:
        raise ValueError(f"it would have more than {_LIMIT_BYTES} bytes")
    return text


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    document = json.loads(text) if text.strip() else {}
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the text is wrong, not its type
    return document


def _write(path: Path, text: str) -> None:
    # Written in place: on Kubernetes the file is a mount, which a rename cannot replace.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        data = text.encode()
        os.write(fd, data)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)
