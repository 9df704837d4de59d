"""Fit a line through points, store it, and note where and how it was done.

    fit_line.py POINTS NAME

A real job would store its model where other machines see it; here a folder for temporary files will do.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tempfile
from pathlib import Path

from airflow_provider_launch.tracker import app_run_from_env


def fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the line with the least squares."""
    count = len(points)
    mean_x, mean_y = (sum(values) / count for values in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return slope, mean_y - slope * mean_x


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        points = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(file)]
    slope, intercept = fit(points)
    name = re.sub(r"[^\w-]+", "-", sys.argv[2])
    model = Path(tempfile.gettempdir()) / f"launch-line-{name}.json"
    model.write_text(json.dumps({"slope": slope, "intercept": intercept}), encoding="utf-8")
    run = app_run_from_env()
    run.add_metadata(slope=slope, intercept=intercept)
    run.add_artifact("model", str(model), {"format": "json", "points": len(points)})
    print(f"y = {slope:.3f} x + {intercept:.3f}", flush=True)
