"""The variables that a replica may inherit from the launcher."""

from __future__ import annotations

import fnmatch

import pytest

from airflow_provider_launch.schedulers.environment import inherited_env


def test_nothing_of_airflow_is_copied_whatever_the_pattern() -> None:
    """Its images are started with the password of the first user in such a variable."""
    environ = {
        "AIRFLOW__CORE__FERNET_KEY": "x",
        "_AIRFLOW_WWW_USER_PASSWORD": "x",
        "__AIRFLOW_X": "x",
        "airflow_home": "x",
        "HF_TOKEN": "y",
        "MY_AIRFLOW": "y",
    }

    assert inherited_env(environ, ["*"]) == {"HF_TOKEN": "y", "MY_AIRFLOW": "y"}
    assert inherited_env(environ, ["_AIRFLOW*", "AIRFLOW__CORE__FERNET_KEY"]) == {}


def test_what_an_engine_gives_to_a_replica_is_not_copied() -> None:
    """A launcher may run in a replica of another app, or in a job of the same engine."""
    environ = {
        "LAUNCH_RESULT_PATH": "/outer", "LAUNCH_PORT_A_B": "1", "TORCHX_RANK0_HOST": "outer", "PET_LOG_DIR": "/outer",
        "TORCHELASTIC_ERROR_FILE": "/outer", "LAUNCH_ROLE": "outer", "RANKS_HOST": "x", "RANKS": "y",
        "LAUNCH_HOME": "z",
    }  # fmt: skip

    assert inherited_env(environ, ["*"], ["RANKS_*"]) == {"RANKS": "y", "LAUNCH_HOME": "z"}


@pytest.mark.parametrize(
    "pattern", ["", "*", "A", "A*", "*A", "A**", "A*B", "A?", "A?*", "[AB]*", "[A", "A.", "A.*", "a*"]
)
def test_a_pattern_means_the_same_as_in_a_shell(pattern: str) -> None:
    """A name and a prefix are compared without a pattern, because most of them are one of these."""
    names = ["A", "AB", "AxB", "BA", "B", "[A", "[AB", "A.", "A.B", "A*", "a", "A?", ""]

    assert [*inherited_env(dict.fromkeys(names, ""), [pattern])] == [
        n for n in names if fnmatch.fnmatchcase(n, pattern)
    ]
