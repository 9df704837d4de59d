"""Faults between a client and a real engine, see `proxy.py`."""

from tests.faults.actions import Fault, cut, delay, drop, drop_answer, error, leave, new_events, silence
from tests.faults.clock import Clock
from tests.faults.proxy import FaultProxy
from tests.faults.wire import Request

__all__ = [
    "Clock",
    "Fault",
    "FaultProxy",
    "Request",
    "cut",
    "delay",
    "drop",
    "drop_answer",
    "error",
    "leave",
    "new_events",
    "silence",
]
