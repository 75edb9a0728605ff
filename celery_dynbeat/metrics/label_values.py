"""Bound the values of a label, so that no row and no message can create endless series."""

from collections import defaultdict

#: Values of one label in one process. Each further value is counted as OTHER.
MAX_VALUES = 500
OTHER = "(other)"
UNKNOWN = "(unknown)"

#: The first words of the stored reasons of skipped fire times.
SKIP_REASONS = ("overlap", "missed", "skipped")


class LabelValues:
    """The values that the labels have had, up to MAX_VALUES of each label."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, set[str]] = defaultdict(set)

    def bounded(self, label: str, value: str | None) -> str:
        """Return ``value``, UNKNOWN if it is empty, or OTHER if there are too many values."""
        if not value:
            return UNKNOWN
        seen = self._seen[label]
        if value in seen:
            return value
        # Without a lock: threads can exceed the bound by their number.
        if len(seen) >= MAX_VALUES:
            return OTHER
        seen.add(value)
        return value


def skip_reason(reason: str) -> str:
    """Return the label for the stored reason of a skipped fire time."""
    first = reason.replace(":", " ").partition(" ")[0]
    return first if first in SKIP_REASONS else OTHER
