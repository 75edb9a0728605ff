"""A run on its way to the broker."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple


class OutgoingRun(NamedTuple):
    """A run on its way to the broker, and the ``version`` of its schedule when it was read.

    ``expires_at`` None: it may start at any time. ``attempt`` and ``retries`` are those that the
    run has behind it. ``waiting_since`` is when it was first sent, where nobody has begun it since.
    """

    run_id: str
    schedule_id: int
    owner: str
    name: str
    version: int
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    scheduled_for: datetime
    expires_at: datetime | None = None
    overlap: str = "allow"
    attempt: int = 0
    retries: int = 0
    waiting_since: datetime | None = None
