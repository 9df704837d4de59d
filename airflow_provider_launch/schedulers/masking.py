"""Masks likely secrets before a request is shown; public for authors of schedulers."""

from __future__ import annotations
