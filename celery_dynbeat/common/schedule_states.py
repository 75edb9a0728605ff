"""The states of a schedule, as lists and counts name them.

Each schedule is in exactly one of the first four. The others are additional: an active schedule can
be held or overdue, and a schedule in any state can be failing.
"""

from enum import StrEnum


class State(StrEnum):
    """A state by which ``list()`` and ``count()`` filter."""

    #: Enabled, not finished, not quarantined.
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    QUARANTINED = "quarantined"
    #: Active, and a hold of its owner or of everything stops it.
    HELD = "held"
    #: Active, not held, and due for longer than dynbeat_dispatch_timeout.
    OVERDUE = "overdue"
    #: The last ended run failed or was lost.
    FAILING = "failing"


#: The states in which schedules have a ``next_run_at``.
TIMED = frozenset({State.ACTIVE, State.OVERDUE, State.FAILING})
