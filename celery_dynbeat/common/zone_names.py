"""The names of the tz database."""

import difflib
from functools import cache
from zoneinfo import available_timezones

# These names are in the tz database, but their meaning differs between machines.
_NOT_ZONES = {"localtime", "posixrules", "Factory"}
_MAX_LENGTH = 40


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones that mean the same on each machine."""
    return frozenset(available_timezones() - _NOT_ZONES)


def nearest_zone(name: str) -> str | None:
    """Return the zone whose name is most similar to ``name``, or None."""
    folded = {known.lower(): known for known in zone_names()}
    wanted = name.strip()[:_MAX_LENGTH].lower().replace(" ", "_")
    if wanted in folded:
        return folded[wanted]
    # Places only: a zone with letters similar to "KST" or "UTC+9" can be hours away.
    places = [known for known in folded if "/" in known and not known.startswith("etc/")]
    matches = difflib.get_close_matches(wanted, places, n=1)
    return folded[matches[0]] if matches else None
