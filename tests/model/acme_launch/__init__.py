"""A package of plug-ins as somebody wrote it for TorchX: the tests change `torchx` in its imports, and nothing else."""
