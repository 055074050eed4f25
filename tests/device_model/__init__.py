"""A device in host memory: what hpcomm.device.driver asks of one, and arrays on it.

Streams work as late as they may, memory begins as poison, and every access is noted, so that races are told.
To be imported where tests/ is on the path, as its conftest.py puts it.
"""

from __future__ import annotations

from hpcomm.device.libraries import LIBRARIES

from .device_arrays import DeviceArray, Library, asarray, current_stream, empty, stream
from .driver import Model

__all__ = ["DeviceArray", "Model", "asarray", "current_stream", "empty", "stream"]

LIBRARIES["device_model"] = Library()
