"""The longest specs that are read, in characters."""

MAX_SPEC = 255
MAX_RRULE = 4_000
#: Of an AnyOf or an Excluding: a year of dates and some triggers.
MAX_COMPOSITE = 8_000
