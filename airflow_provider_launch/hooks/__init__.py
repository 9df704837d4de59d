"""Airflow hooks: from a connection to a scheduler."""

from airflow_provider_launch._airflow import require_airflow

require_airflow()
