"""A logger for lines of an app: of a record, only what such a line has."""

from __future__ import annotations

import sys
from typing import Any

_TOKEN = "eyJ"  # noqa: S105 - how each JSON web token begins
_PATTERN = "JWT_PATTERN"


def line_logger(log: Any) -> Any:
    """Return a logger that writes to the same place, under the same name, level and context.

    Airflow's logger checks in each record for an exception, for a stack, for the line of code which wrote it, and in
    each of its values for a web token. A line of an app has none of the first, and a token only where the text has
    one; the checking costs as much as the rest of the record. All other processors of the deployment stay: time,
    masking, its own.

    Args:
        log: of an operator, sensor or trigger. One that is not structlog's is returned as it is.
    """
    try:
        import structlog
        from structlog.processors import (
            CallsiteParameterAdder,
            ExceptionRenderer,
            StackInfoRenderer,
            UnicodeDecoder,
        )

        bound = log.bind()
        context, name = structlog.get_context(bound), bound.name
    except (ImportError, AttributeError, ValueError):
        return log
    needless = (CallsiteParameterAdder, ExceptionRenderer, StackInfoRenderer, UnicodeDecoder)
    processors = [
        _where_a_token_is(each) if _only_redacts_tokens(each) else each
        for each in structlog.get_config()["processors"]
        if not isinstance(each, needless)
    ]
    return structlog.wrap_logger(None, processors, logger_factory_args=(name,), **context).bind()


def _only_redacts_tokens(processor: Any) -> bool:
    """Return whether it is Airflow's, and its pattern still what we know."""
    module = sys.modules.get(getattr(processor, "__module__", ""))
    pattern = getattr(getattr(module, _PATTERN, None), "pattern", "")
    return getattr(processor, "__name__", "") == "redact_jwt" and str(pattern).startswith(_TOKEN)


def _where_a_token_is(redact: Any) -> Any:
    def redact_line(logger: Any, method: str, record: Any) -> Any:
        return redact(logger, method, record) if _TOKEN in record["event"] else record

    return redact_line
