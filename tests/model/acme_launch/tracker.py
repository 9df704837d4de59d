"""Keeps metadata of runs as lines of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource


class AcmeTracker(TrackerBase):
    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def _add(self, run_id: str, kind: str, value: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([run_id, kind, value]) + "\n")

    def _rows(self, run_id: str, kind: str) -> list[Any]:
        rows = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [value for run, its_kind, value in rows if (run, its_kind) == (run_id, kind)]

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        self._add(run_id, "artifact", {"name": name, "path": path})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        return {row["name"]: TrackerArtifact(row["name"], row["path"], None) for row in self._rows(run_id, "artifact")}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        self._add(run_id, "metadata", kwargs)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        return {name: value for row in self._rows(run_id, "metadata") for name, value in row.items()}

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        self._add(run_id, "source", source_id)

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        return [TrackerSource(source, None) for source in self._rows(run_id, "source")]

    def lineage(self, run_id: str) -> Lineage:
        raise NotImplementedError

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        return {json.loads(line)[0] for line in self.path.read_text().splitlines()}


def create(config: str | None) -> AcmeTracker:
    return AcmeTracker(config or "acme.jsonl")
