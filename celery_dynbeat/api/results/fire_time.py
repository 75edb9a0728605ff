"""The results of the API's calls for upcoming fire times and previews."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_dynbeat.api.results.base import Info
from celery_dynbeat.triggers import Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class FireTime(Info):
    """An upcoming fire time. ``at`` is aware and in UTC.

    If ``is_skipped`` is true, ``skip()`` or a calendar took the fire time out. ``reason`` then says
    who skipped it and why, such as ``"skipped by alice@example.com: public holiday"``. ``calendar``
    is the name of the calendar that took it out or moved it to a business day, or None.

    ``run_at`` is when the run is sent: after a hold and quiet hours, and after the offset in its
    window. It is None for a fire time that is taken out, and during a hold without an end.
    ``wait_note`` says why the run waits, or is None if it does not.
    """

    at: datetime
    is_skipped: bool = False
    reason: str | None = None
    calendar: str | None = None
    run_at: datetime | None = None
    wait_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedFireTime(Info):
    """A fire time of a preview.

    - ``at`` is aware and in UTC. ``run_at`` is when the run is sent: after a hold and quiet
      hours, and after the offset in its window. It is None during a hold without an end, and if no
      run is sent: ``catch_up`` or ``overlap`` sends another one of the same quiet time.
    - ``local`` is ``at`` in the zone of the owner. ``to_dict`` keeps its offset.
    - ``note`` says how a clock change, a hold, quiet hours or the window affect the fire time, or
      is None.
    """

    at: datetime
    run_at: datetime | None
    local: datetime
    note: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return {**Info.to_dict(self), "local": self.local.isoformat()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewWarning(Info):
    """A property of a valid schedule that a user may not expect.

    ``code`` is ``"either_day"``, ``"rare"``, ``"all_excluded"``, ``"nothing_excluded"``,
    ``"calendar"``, ``"retry_too_late"`` or ``"no_name"``. ``message`` is a sentence.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Info):
    """The fire times that a schedule would have. ``to_dict`` is a body for a web form.

    - ``name`` is None if the call gave none.
    - ``text`` is the text of the given trigger.
    - ``trigger`` has the values that an ``H`` has in this schedule. If the given trigger names no
      zone, it has the zone of the owner. ``description`` describes it in a sentence.
    - ``timezone`` is the zone of the owner.
    - ``warnings`` name, among other things, the first fire times that a calendar removes or moves.
      No warning prevents ``create()``.
    - ``remaining`` is how many more schedules the owner may have, or None without a limit.
      ``min_interval`` is the shortest interval that the owner's triggers may have.
    """

    owner: str
    name: str | None
    text: str
    trigger: Trigger
    description: str
    timezone: str
    fire_times: Sequence[PreviewedFireTime]
    warnings: Sequence[PreviewWarning]
    remaining: int | None
    min_interval: timedelta
