"""Launch distributed apps on any scheduler, from Airflow or from plain Python."""

__version__ = "0.1.0"
