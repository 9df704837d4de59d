"""Runs apps as processes of this host, which outlive their launcher."""
