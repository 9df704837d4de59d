"""Copy one file between fsspec locations: `python -m airflow_provider_launch.apps.copy --src A --dst B`."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Copy the file; missing directories of the target are created."""
    parser = argparse.ArgumentParser(prog="copy", description="Copy one file between fsspec locations.")
    parser.add_argument("--src", required=True, help="the file")
    parser.add_argument("--dst", required=True, help="location of the copy")
    given = parser.parse_args(argv)
    try:
        import fsspec
    except ImportError:
        parser.error("fsspec is not installed: pip install fsspec")
    target, path = fsspec.core.url_to_fs(given.dst)
    target.makedirs(target._parent(path), exist_ok=True)  # noqa: SLF001 - fsspec has no public name
    with fsspec.open(given.src, "rb") as source, target.open(path, "wb") as copy:
        shutil.copyfileobj(source, copy)


if __name__ == "__main__":
    main()
