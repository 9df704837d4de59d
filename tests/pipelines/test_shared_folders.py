"""Files that a step writes outside of its own folder, where another run may work at the same time."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from airflow_provider_launch.pipelines.run_step import find_step, run_step
from airflow_provider_launch.pipelines.validation import load

PIPELINE = """
    parameters: {{x: 1}}
    executor: {{type: local, config: {{env: {{HOME: "{home}", TMPDIR: "{tmp}"}}}}}}
    dag:
      start_at: shell
      steps:
        shell: {{type: task, command_type: shell, command: export y=$x, returns: [y], next: function}}
        function: {{type: task, command: functions.same, returns: [y], next: notebook}}
        notebook: {{type: task, command_type: notebook, command: book.ipynb, returns: [y], next: kept}}
        kept: {{type: task, command_type: notebook, command: book.ipynb, returns: [y], notebook_output_path: out.ipynb, catalog: {{put: out.ipynb}}, next: object}}
        object: {{type: task, command: functions.same, returns: [{{name: y, kind: object}}], next: success}}
    """
COMPILED = f"__pycache__/functions.{sys.implementation.cache_tag}.pyc"
# Each file is a decision. Python replaces compiled modules atomically, so that steps can share them.
# IPython writes the same text, once, into the home folder.
README = "home/.ipython/profile_default/startup/README"
OUTSIDE = {
    "shell": set(), "function": {f"code/{COMPILED}"}, "notebook": {README}, "kept": {README},
    "object": {f"code/{COMPILED}"},
}  # fmt: skip
OWN = {"kept": "out.ipynb", "object": ".launch-objects/object/y.pickle"}


@pytest.mark.parametrize(("name", "expected"), OUTSIDE.items(), ids=OUTSIDE)
def test_a_step_writes_only_into_its_own_folder(tmp_path, launch_home, write, name, expected):
    """Own are the folder of the app below LAUNCH_HOME, and the folder of a task with a catalog."""
    if name in {"notebook", "kept"}:
        pytest.importorskip("nbclient")
    for folder in ("home", "tmp", "data"):
        (tmp_path / folder).mkdir()
    path = write(PIPELINE.format(home=tmp_path / "home", tmp=tmp_path / "tmp"), "code/pipeline.yaml")
    write("def same(x):\n    return x\n", "code/functions.py")
    cell = {"cell_type": "code", "metadata": {}, "source": "y = x", "outputs": [], "execution_count": None, "id": "a"}
    book = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "code" / "book.ipynb").write_text(json.dumps(book))
    model = load(path)
    step, _ = find_step(model, name)
    before = listed(tmp_path)

    code, returned = run_step(model, step, {}, elements=[], data_dir=tmp_path / "data")

    assert (code, returned) == (0, {"y": {"$object": OWN[name]} if name == "object" else 1})
    own = {f"data/{OWN[name]}"} if name in OWN else set()
    assert listed(tmp_path) - before == expected | own
    # Nothing is left of the scratch folder of a notebook either.
    assert not [path for path in listed(launch_home) if "values.json" in path or "kernel-" in path]


def listed(folder: Path) -> set[str]:
    found = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix() for path in found}
