"""Airflow triggers: following apps without a worker."""

from airflow_provider_launch._airflow import require_airflow

require_airflow()
