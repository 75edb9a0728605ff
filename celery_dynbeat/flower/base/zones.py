"""The time zone of a page: the viewer's zone, UTC, or the zone of each owner. PURE.

?zone=Asia/Seoul       this zone. A link that is sent to a colleague shows the same times
?zone=owner            the zone of each schedule
(no argument)          what the viewer chose last: "viewer", "UTC" or "owner"
"""

from dataclasses import dataclass
from zoneinfo import ZoneInfo

from celery_dynbeat.common.errors import InvalidTriggerError
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
