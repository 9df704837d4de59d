"""`python -m airflow_provider_launch.cli` is the command `launch`."""

from __future__ import annotations

import sys

from airflow_provider_launch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
