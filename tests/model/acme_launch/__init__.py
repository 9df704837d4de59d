"""A package of TorchX plug-ins, in which only the `torchx` of its imports is changed."""
