"""Tags that registered named resources carry; `Resource.get_resource_name` and `is_fractional` read them."""

from __future__ import annotations

RESOURCE_NAME = "torchx/named_resources.name"
IS_FRACTIONAL = "torchx/named_resources.is_fractional"
