"""Airflow hooks, which turn a connection into a scheduler."""

from airflow_provider_launch._airflow import require_airflow

require_airflow()
