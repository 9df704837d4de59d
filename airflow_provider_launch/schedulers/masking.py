"""Hide what looks like a secret before a request is shown; here for the authors of schedulers."""

from __future__ import annotations
