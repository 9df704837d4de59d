"""Small helpers that do not depend on apps or schedulers."""
