"""Watching apps: state changes, log lines, and the cursors from which another process continues."""
