"""A run that beat sends to the broker."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple


class OutgoingRun(NamedTuple):
    """A run that beat sends, with the columns of its schedule that the message needs.

    ``version`` is the schedule's version when its row was read. ``expires_at`` None means that the
    run may start at any time. ``attempt`` and ``retries`` count the attempts and retries that the
    run has had. ``unstarted_since`` is when the run was first sent, if no worker has started it.
    ``origin`` is a value of ``db.models.Origin``. ``pings``: workers ping the URL of the schedule.
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
    unstarted_since: datetime | None = None
    origin: str = "schedule"
    pings: bool = False
