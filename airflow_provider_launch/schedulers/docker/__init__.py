"""Runs apps as containers of one Docker engine."""
