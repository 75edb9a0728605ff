"""The reason why a schedule ran or did not run, from the first rule that applies.

PURE. The order is from what stops every fire time to what concerns the newest run:

    quarantined, unreadable, paused, held    the row or a person stops it
    quiet hours, window                      a fire time waits for their end
    no beat, beat without progress, overdue  beat does not claim it
    waits, runs, retries                     the newest run has not ended
    failed, lost, revoked, expired           the newest run ended badly
    finished                                 the schedule has no fire time left
    skipped, ran                             how the newest run ended otherwise

A finished schedule has no future: neither a hold nor a missing beat stops it.
"""

from collections.abc import Callable, Iterator, Mapping

from celery_dynbeat.insights.explain.facts import Facts
from celery_dynbeat.insights.explain.findings import Finding
from celery_dynbeat.insights.explain.row_rules import (
    beat_rules,
    hold_rules,
    quiet_rules,
    row_rules,
    window_rules,
)
from celery_dynbeat.insights.explain.run_rules import ended_rules, unfinished_rules
from celery_dynbeat.planning.obstacles import Obstacle

_Rule = Callable[[Facts], Iterator[Finding]]
#: The obstacles of a fire time that has not been decided, in their order.
_OBSTACLES: Mapping[Obstacle, _Rule] = {
    Obstacle.STOPPED: row_rules,
    Obstacle.HOLD: hold_rules,
    Obstacle.QUIET: quiet_rules,
}
_OTHERS: tuple[_Rule, ...] = (window_rules, beat_rules, unfinished_rules, ended_rules)


def find_cause(facts: Facts) -> Finding:
    """Return the cause that explains the schedule best."""
    obstacles = (_OBSTACLES[each] for each in Obstacle if each in _OBSTACLES)
    return next(finding for rule in (*obstacles, *_OTHERS) for finding in rule(facts))
