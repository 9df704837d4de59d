"""Airflow hooks: from a connection to a scheduler."""
