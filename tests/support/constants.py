"""Set constants of the package to the values that a test gives its processes."""

import json
import os
import pkgutil
from datetime import timedelta
from typing import Any

from tests.support.event_log import CONSTANTS_VARIABLE


def set_constants() -> None:
    """Set the constants that the environment names. AttributeError for an unknown one."""
    for path, value in json.loads(os.environ.get(CONSTANTS_VARIABLE, "{}")).items():
        set_constant(path, value)


def set_constant(path: str, value: Any) -> None:
    """Set the constant with a dotted name. Seconds become a duration if it is one."""
    place, _, name = path.rpartition(".")
    holder = pkgutil.resolve_name(place)
    if not hasattr(holder, name):
        raise AttributeError(path)
    is_duration = isinstance(getattr(holder, name), timedelta)
    setattr(holder, name, timedelta(seconds=value) if is_duration else value)
