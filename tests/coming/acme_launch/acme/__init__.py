"""A package of a TorchX user: a scheduler, components, a named resource and a tracker of its own.

`tests/coming/test_torchx_package.py` moves it: only its imports and the groups of its entry points change.
"""
