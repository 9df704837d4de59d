"""What a connection means: its scheduler, defaults and locks, for hooks and for the command line; without Airflow."""
