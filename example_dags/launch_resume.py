"""Work in steps, remember the last one, and fail once on the way. Standard library only.

    launch_resume.py NAME NUMBER STEPS

The first attempt of number 1 dies after half of the steps; the next one goes on where it stopped. A real job would keep
its checkpoint in a store that all machines see; here a folder for temporary files will do. NAME makes it unique.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

CRASH = 3


def work(name: str, number: int, steps: int) -> None:
    """Do the steps which no earlier attempt has done."""
    checkpoint = Path(tempfile.gettempdir()) / f"launch-resume-{name}-{number}"
    done = int(checkpoint.read_text(encoding="ascii")) if checkpoint.exists() else 0
    print(f"resuming after step {done}" if done else "starting from the beginning", flush=True)
    for step in range(done + 1, steps + 1):
        time.sleep(0.2)
        checkpoint.write_text(str(step), encoding="ascii")
        print(f"step {step} of {steps}", flush=True)
        if number == 1 and not done and step == steps // 2:
            print("something broke", file=sys.stderr, flush=True)
            sys.exit(CRASH)
    checkpoint.unlink()
    print("finished", flush=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
