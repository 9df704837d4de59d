"""The Role of `docs/kubernetes.md`, as its readers copy it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml


def rules_of_the_page(checkout: Path) -> list[dict[str, Any]]:
    """Return the rules."""
    page = (checkout / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert block, "the page has lost its Role"
    rules: list[dict[str, Any]] = yaml.safe_load(block[1])["rules"]
    return rules
