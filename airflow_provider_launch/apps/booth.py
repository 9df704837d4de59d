"""Evaluate Booth's function and store the result: `python -m airflow_provider_launch.apps.booth --x1=1 --x2=3 ...`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from airflow_provider_launch.runtime.tracking import FsspecResultTracker


def main(argv: Sequence[str] | None = None) -> None:
    """Store `booth_eval` under the number of the trial, and print it."""
    parser = argparse.ArgumentParser(prog="booth", description="Evaluate Booth's function; its minimum is at (1, 3).")
    parser.add_argument("--x1", type=float, required=True, help="first coordinate")
    parser.add_argument("--x2", type=float, required=True, help="second coordinate")
    parser.add_argument("--trial_idx", type=int, default=0, help="number of the trial, the key of the result")
    parser.add_argument("--tracker_base", required=True, help="directory or fsspec location of the results")
    given = parser.parse_args(argv)
    value = (given.x1 + 2 * given.x2 - 7) ** 2 + (2 * given.x1 + given.x2 - 5) ** 2
    try:
        FsspecResultTracker(given.tracker_base)[str(given.trial_idx)] = {"booth_eval": value}
    except ImportError:
        parser.error("fsspec is not installed: pip install fsspec")
    print(f"booth({given.x1:g}, {given.x2:g}) = {value:g}")  # noqa: T201 - the log of the app


if __name__ == "__main__":
    main()
