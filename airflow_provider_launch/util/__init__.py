"""Small helpers at the bottom of the package; nothing here knows apps or schedulers."""
