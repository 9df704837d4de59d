"""The program of the replicas."""

from __future__ import annotations

import argparse
import os
import sys

from torchx.tracker import app_run_from_env

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--replica", type=int)
    given = parser.parse_args()
    sys.stdout.write(f"{os.environ['GREETING']} from {given.replica} in {os.environ['ROOM']}\n")
    if given.replica == 0:
        run = app_run_from_env()
        run.add_metadata(epochs=given.epochs, loss=0.5)
        run.add_artifact("model", "/models/1", {"size": 7})
        run.add_source("torchx://data/1", "rows")
