"""The command `launch`: launch apps and manage them from a shell, also as `airflow launch`."""
