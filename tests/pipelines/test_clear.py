"""Runs that users continue: a task was cleared, or marked as a success."""

from __future__ import annotations

from pathlib import Path

# Names that differ in each attempt.
NAMES = """
    catalog: {catalog}
    dag:
      start_at: make
      steps:
        make:
          type: task
          command_type: shell
          command: |
            echo $$ > part-$$.csv
            echo $$ > "part-$(date +%s%N).csv"
            echo $$ > "$(mktemp part-XXXXXX.csv)"
            test -e {flag} || {{ touch {flag}; exit 1; }}
            export attempt=$$
          returns: [attempt]
          max_attempts: 2
          catalog: {{put: "*.csv"}}
          next: read
        read: {{type: task, command_type: shell, command: 'export seen="$(cat part-*.csv | tr "\\n" " ")" attempt=$attempt', returns: [seen], catalog: {{get: "*.csv"}}, next: success}}
    """


def csv_files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.csv")}


def test_only_files_of_the_last_attempt_are_read_after_a_retry_and_after_clear(run_pipeline, clear, tmp_path) -> None:
    """Names with a pid, a date or random letters differ in each attempt."""
    ran = run_pipeline(NAMES.format(catalog=tmp_path / "catalog", flag=tmp_path / "flag"))
    found = [(ran.returned("make")["attempt"], ran.returned("read")["seen"])]
    names = csv_files(tmp_path / "catalog")

    ran = clear(ran, "make", "read", "success")

    assert ran.state == "success", ran.states
    found.append((ran.returned("make")["attempt"], ran.returned("read")["seen"]))
    assert [seen.split() for _, seen in found] == [[str(attempt)] * 3 for attempt, _ in found]
    assert found[0] != found[1]
    assert len(csv_files(tmp_path / "catalog") - names) == len(csv_files(tmp_path / "catalog")) == 3


ELEMENTS = """
    catalog: {catalog}
    parameters: {{xs: [a, b, c]}}
    dag:
      start_at: m
      steps:
        m:
          type: map
          iterate_on: xs
          iterate_as: x
          next: read
          branch:
            start_at: make
            steps:
              make: {{type: task, command_type: shell, command: 'echo $x > part-$x-$$.csv; export y=$x-$(cat {code})', returns: [y], catalog: {{put: "*.csv"}}, next: use}}
              use: {{type: task, command_type: shell, command: 'export z=$(cat part-*.csv)', returns: [z], catalog: {{get: "*.csv"}}, next: success}}
        read: {{type: task, command_type: shell, command: 'ls m/*/*.csv; export seen="$(cat m/*/*.csv | tr "\\n" " ")"', returns: [seen], catalog: {{get: "m/**"}}, next: success}}
    """


def test_a_cleared_element_replaces_its_own_files_and_values(run_pipeline, clear, tmp_path) -> None:
    """The user cleared one element of a map, with the tasks after it, when the code had changed."""
    (tmp_path / "code").write_text("1")
    ran = run_pipeline(ELEMENTS.format(catalog=tmp_path / "catalog", code=tmp_path / "code"))
    assert ran.returned("m.fan_in") == {"y": ["a-1", "b-1", "c-1"], "z": ["a", "b", "c"]}
    before = csv_files(tmp_path / "catalog")
    (tmp_path / "code").write_text("2")

    again = clear(ran, "m.each.make[1]", "m.each.use[1]", "m.each.success[1]", "m.fan_in", "read", "success")

    assert again.state == "success", again.states
    assert again.returned("m.fan_in") == {"y": ["a-1", "b-2", "c-1"], "z": ["a", "b", "c"]}
    assert again.returned("read") == {"seen": "a b c "}
    after = csv_files(tmp_path / "catalog")
    assert len(after) == 3
    assert {name for name in before if not name.startswith("part-b")} == before & after


MARKED = """
    parameters: {base: 5, xs: [a, b, c]}
    dag:
      start_at: p1
      steps:
        p1: {type: task, command_type: shell, command: export x=10, returns: [x], next: p2}
        p2: {type: task, command_type: shell, command: exit 3, returns: [y], next: m}
        m:
          type: map
          iterate_on: xs
          iterate_as: one
          next: p3
          branch: {start_at: sq, steps: {sq: {type: task, command_type: shell, command: 'test $one != b && export sq=$one$one$x', returns: [sq], next: success}}}
        p3: {type: task, command_type: shell, command: 'export seen="x=[$x] base=[$base] sq=$sq"', returns: [seen], next: success}
    """


def test_a_task_and_an_element_that_were_marked_as_a_success_hide_no_value(run_pipeline, clear) -> None:
    ran = run_pipeline(MARKED)
    assert (ran.states["p2"], ran.states["p3"]) == ("failed", "upstream_failed")
    mapped = [name for name in ran.states if name.startswith("m.each")]
    ran = clear(ran, "m.fan_out", *mapped, "m.fan_in", "p3", "success", successes=("p2",))
    assert (ran.states["m.each.sq[1]"], ran.states["p3"]) == ("failed", "upstream_failed")

    ran = clear(ran, "m.each.success[1]", "m.fan_in", "p3", "success", successes=("m.each.sq[1]",))

    assert ran.state == "success", ran.states
    assert ran.returned("p3") == {"seen": 'x=[10] base=[5] sq=["aa10", null, "cc10"]'}
