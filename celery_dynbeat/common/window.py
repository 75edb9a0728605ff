"""The window of a schedule: the span after a fire time in which the schedule has its offset. PURE.

A window is a timedelta, or the text of a share of the time up to the next fire time, as ``"50%"``.
"""

import re
from datetime import timedelta

_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?%", re.ASCII)


def as_share(text: str) -> str:
    """Return a share in its shortest form. Raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004 - percent
        msg = "must be a duration, or more than 0% and at most 100% of the interval, such as '50%'"
        raise ValueError(msg)
    return f"{float(match[1]):g}%"


def width(window: timedelta | str, distance: timedelta | None) -> timedelta:
    """Return the width of a window after a fire time.

    ``distance`` is the time up to the next fire time, or None after the last one. A share of it is
    then nothing.
    """
    if isinstance(window, timedelta):
        return window if distance is None else min(window, distance)
    return timedelta(0) if distance is None else distance * (float(window[:-1]) / 100)
