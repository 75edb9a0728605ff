"""Decide about runs that the application's own methods declined to send.

    declined at the first call       -> revoked: the application decided not to send the run
    declined, perhaps sent before    -> sent: a message may be in the queue, and that may be the
                                        reason why the application declined

No earlier call can have published the run before ``dynbeat_dispatch_timeout`` has passed. After
that, beat may have died before it confirmed the run, or the broker may not have confirmed the
message.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.common.run_ids import created_at
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.planning.outgoing_run import OutgoingRun


@dataclass(frozen=True, slots=True)
class DeclinedRuns:
    """The declined runs: ids to mark as sent, and ids to revoke by their reason."""

    sent: frozenset[str]
    revoked: Mapping[str, Sequence[str]]


def decide_declined(
    outgoing: Sequence[OutgoingRun], published: PublishResult, *, now: datetime, settings: Settings
) -> DeclinedRuns:
    """Return which of the declined runs are marked as sent and which are revoked."""
    sent: set[str] = set()
    revoked: defaultdict[str, list[str]] = defaultdict(list)
    if published.declined:
        for run in (run for run in outgoing if run.run_id in published.declined):
            age = now - created_at(run.run_id)
            if run.attempt or run.unstarted_since or age >= settings.dispatch_timeout:
                sent.add(run.run_id)
            else:
                revoked[published.declined[run.run_id]].append(run.run_id)
    return DeclinedRuns(frozenset(sent), revoked)
