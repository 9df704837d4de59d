"""Code shared by the built-in schedulers.

`base` is their base class; the other modules are functions and small models, one topic each. Nothing here depends on a
backend or imports an SDK. Plug-ins should extend `schedulers.api.Scheduler` instead: this package may change between
releases.
"""
