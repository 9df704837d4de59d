"""The functions of launch_pipeline.yaml. They do not use Airflow: parameters are arguments, files are files."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).with_name("launch_wordcount.md")


def fetch() -> int:
    """Fetch the text of all pages, and write each page into a separate file."""
    # This URL is a file in the same folder, so that the example needs no network.
    with urllib.request.urlopen(SOURCE.resolve().as_uri()) as answer:  # noqa: S310 - the address is ours
        text = answer.read().decode("utf-8")
    pages = [page for page in re.split(r"(?m)^(?=# )", text) if page.strip()]
    folder = Path("pages")
    folder.mkdir()
    for number, page in enumerate(pages):
        (folder / f"{number:02}.md").write_text(page, encoding="utf-8")
    print(f"{len(pages)} pages, {len(text)} signs")
    return len(pages)


def split(parts: int) -> list[list[str]]:
    """Split the pages into shares of about equal size."""
    shares: list[list[str]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for page in sorted(Path("pages").iterdir(), key=lambda path: -path.stat().st_size):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(page.name)
        sizes[smallest] += page.stat().st_size
    print(f"shares of {sizes} bytes")
    return [share for share in shares if share]


def count(share: list[str]) -> tuple[int, int]:
    """Count the words of the pages of one share."""
    words: Counter[str] = Counter()
    for name in share:
        words.update(re.findall(r"[a-z]{3,}", (Path("pages") / name).read_text(encoding="utf-8").lower()))
    Path("counts.json").write_text(json.dumps(words), encoding="utf-8")
    print(f"{sum(words.values())} words in {len(share)} pages")
    return sum(words.values()), len(words)


def report(words: list[int], pages: int, longest: int) -> None:
    """Write the most frequent words."""
    total: Counter[str] = Counter()
    for path in sorted(Path("count").glob("*/counts.json")):
        total.update(json.loads(path.read_text(encoding="utf-8")))
    if sum(total.values()) != sum(words):
        raise SystemExit(f"the files have {sum(total.values())} words, the steps have counted {sum(words)}")
    lines = [f"{sum(words)} words in {pages} pages, counted by {len(words)} tasks"]
    lines += [f"{number:6} {word}" for word, number in total.most_common(longest)]
    Path("report.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
