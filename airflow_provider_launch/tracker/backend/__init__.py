"""Trackers that come with this package."""
