"""Airflow triggers: following apps without a worker."""
