"""What scripts of jobs import."""
