"""A tracker that stores one JSON document per call, each in a file of its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource


class AcmeTracker(TrackerBase):
    """Keeps runs in a directory."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        self._add("artifact", run_id, name=name, path=path, metadata=dict(metadata or {}))

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        return {one["name"]: TrackerArtifact(**one) for one in self._all("artifact", run_id)}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        self._add("metadata", run_id, **kwargs)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        return {name: value for one in self._all("metadata", run_id) for name, value in one.items()}

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        self._add("source", run_id, source_run_id=source_id, artifact_name=artifact_name)

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        return [TrackerSource(**one) for one in self._all("source", run_id)]

    def lineage(self, run_id: str) -> Lineage:
        raise NotImplementedError

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        return sorted({json.loads(file.read_text())["run"] for file in self.folder.glob("*.json")})

    def _add(self, kind: str, run_id: str, **values: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {"kind": kind, "run": run_id, "values": values}
        (self.folder / f"{uuid.uuid4().hex}.json").write_text(json.dumps(document))

    def _all(self, kind: str, run_id: str) -> list[dict[str, Any]]:
        found = [json.loads(file.read_text()) for file in sorted(self.folder.glob("*.json"))]
        return [one["values"] for one in found if (one["kind"], one["run"]) == (kind, run_id)]


def create(config: str | None) -> AcmeTracker:
    """Return the tracker; the entry point names this function."""
    assert config is not None
    return AcmeTracker(config)
