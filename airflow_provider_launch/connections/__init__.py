"""The meaning of a connection: scheduler, defaults and locks, for hooks and for the command line; without Airflow."""
