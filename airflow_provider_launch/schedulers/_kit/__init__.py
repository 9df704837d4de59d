"""What the built-in schedulers share; a backend adds only what is its own.

`base` is the class they extend; the rest are functions and small models, one topic each. Nothing here knows a backend
or imports an SDK. Plug-ins should extend `schedulers.api.Scheduler` instead: this package may change between releases.
"""
