"""Works in steps, saves a checkpoint after each, and fails once. Standard library only.

    launch_resume.py NAME NUMBER STEPS

The first attempt of number 1 fails after half of the steps; the next attempt continues from there. A real job stores
its checkpoint where all machines can read it; this example uses the folder for temporary files. NAME makes it unique.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

CRASH = 3


def work(name: str, number: int, steps: int) -> None:
    """Run the steps that no earlier attempt has finished."""
    checkpoint = Path(tempfile.gettempdir()) / f"launch-resume-{name}-{number}"
    done = int(checkpoint.read_text(encoding="ascii")) if checkpoint.exists() else 0
    print(f"resuming after step {done}" if done else "starting from the first step", flush=True)
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
