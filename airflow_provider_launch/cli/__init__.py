"""The command `launch`: launch apps and look after them from a shell, also as `airflow launch`."""
