"""What a replica may take over from the launcher."""

from __future__ import annotations

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
