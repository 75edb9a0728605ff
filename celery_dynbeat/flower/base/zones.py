"""The time zone of a page, and the instants of a URL or a form in it. PURE.

The zone is the viewer's zone, UTC, or the zone of each owner.

?zone=Asia/Seoul       this zone. A link that is sent to a colleague shows the same times
?zone=owner            the zone of each schedule
(no argument)          what the viewer chose last: "viewer", "UTC" or "owner"
"""

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from celery_dynbeat.api.field_types import parse_instant
from celery_dynbeat.common.errors import InvalidArgumentError, InvalidTriggerError
from celery_dynbeat.triggers.zones import load_zone

UTC = ZoneInfo("UTC")
OWNER = "owner"
VIEWER = "viewer"
#: The cookies that page.js sets: the viewer's choice, and the zone of the browser.
CHOICE_COOKIE = "dynbeat_zone"
VIEWER_COOKIE = "dynbeat_viewer_zone"


@dataclass(frozen=True, slots=True)
class ViewZone:
    """The zone in which a page shows times. ``zone=None`` means the zone of each owner."""

    zone: ZoneInfo | None
    #: The zone of the browser.
    viewer: ZoneInfo

    @property
    def argument(self) -> str:
        """The value of ``?zone=`` that selects this zone for any viewer."""
        return OWNER if self.zone is None else self.zone.key

    @property
    def label(self) -> str:
        """The zone as the menu shows it."""
        return "owner's time" if self.zone is None else self.zone.key

    def of(self, owner_zone: str) -> ZoneInfo:
        """Return the zone for a row whose schedule has ``owner_zone``."""
        return known_zone(owner_zone) or UTC if self.zone is None else self.zone

    @property
    def common(self) -> ZoneInfo:
        """The zone for what belongs to no owner, such as an axis."""
        return self.viewer if self.zone is None else self.zone


def view_zone(*, argument: str, choice: str, viewer: str) -> ViewZone:
    """Return the zone of a page from the argument and the two cookies; unknown names mean UTC."""
    # The search for the names similar to an unknown one takes a millisecond.
    viewer_zone = (known_zone(viewer) if viewer else None) or UTC
    selected = argument or choice or VIEWER
    if selected == OWNER:
        return ViewZone(None, viewer_zone)
    if selected == VIEWER:
        return ViewZone(viewer_zone, viewer_zone)
    return ViewZone(known_zone(selected) or UTC, viewer_zone)


def known_zone(name: str) -> ZoneInfo | None:
    """Return a time zone, or None if there is none of this name."""
    try:
        return load_zone(name)
    except InvalidTriggerError:
        return None


def given_instant(field: str, text: str, *, zone: ZoneInfo, now: datetime) -> datetime:
    """Return the instant of ``2026-11-22T09:00``, with or without an offset, or of ``24h`` ago.

    A time without an offset is in ``zone``. Raises InvalidArgumentError.
    """
    # A "+" in a URL that a person wrote arrives as a space.
    cleaned = text.replace(" ", "+") if "T" in text else text
    try:
        typed = parse_instant(cleaned, direction=-1)
        return typed.resolve(now=lambda: now, zone=zone).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{field}: {error}", field=field) from None
