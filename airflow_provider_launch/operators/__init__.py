"""Airflow operators."""

from airflow_provider_launch._airflow import require_airflow

require_airflow()
