"""Modules for scripts of jobs."""
