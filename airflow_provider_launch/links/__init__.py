"""Links from a task to its app."""

from airflow_provider_launch._airflow import require_airflow

require_airflow()
