"""What becomes of the runs that the application's own methods did not send.

    declined at the first call           -> revoked: the application decided not to send
    declined, and perhaps sent before    -> sent: its message may be in the queue, and that may be
                                            why the application sends no other

Before ``dynbeat_dispatch_timeout`` has passed no earlier call can have published the run. A later
call may follow one whose beat died before it noted the run as sent, or whose message was not
confirmed.
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
class Unsent:
    """``sent``: ids to note as sent. ``revoked``: ids by reason."""

    sent: frozenset[str]
    revoked: Mapping[str, list[str]]


def decide(
    outgoing: Sequence[OutgoingRun], published: PublishResult, *, now: datetime, settings: Settings
) -> Unsent:
    """Return what becomes of the runs that are declined."""
    sent: set[str] = set()
    revoked: defaultdict[str, list[str]] = defaultdict(list)
    if published.declined:
        for run in (run for run in outgoing if run.run_id in published.declined):
            age = now - created_at(run.run_id)
            if run.attempt or run.waiting_since or age >= settings.dispatch_timeout:
                sent.add(run.run_id)
            else:
                revoked[published.declined[run.run_id]].append(run.run_id)
    return Unsent(frozenset(sent), revoked)
