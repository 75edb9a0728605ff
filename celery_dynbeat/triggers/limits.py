"""Limits that several kinds of triggers share."""

from datetime import UTC, datetime, timedelta

#: The longest specs that are read, in characters.
MAX_SPEC_LENGTH = 255
MAX_RRULE_LENGTH = 4_000
#: Room for a year of dates and some triggers.
MAX_COMPOSITE_LENGTH = 8_000
#: The longest interval and the longest delay: 100 years.
MAX_INTERVAL = timedelta(days=36525)
#: Fire times lie in these years. There, conversion to a zone cannot leave the range of datetime.
FIRST_YEAR, LAST_YEAR = 1900, 9899
EARLIEST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
LATEST = datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC)
