"""The state machine of a run, written once; docs/explanation/run-states.md draws it.

Each transition says from which states it leads to which. The functions in ``store/`` execute them,
one conditional UPDATE each, and look at its row count. Against two starts stands ``attempt``: it
counts the starts of a run, each message names the attempt that it follows, and the UPDATE of a
start asks for that number. So of all messages that follow one attempt, one starts the next.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The states of a run."""

    PENDING = "pending"
    SENT = "sent"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REVOKED = "revoked"
    EXPIRED = "expired"
    LOST = "lost"
    SKIPPED = "skipped"


#: A run in one of these has not begun its next attempt: a cancel still wins, a start is allowed.
UNSTARTED = (Status.PENDING, Status.SENT)
#: A run in one of these may still change, and has no ``finished_at``.
UNFINISHED = (*UNSTARTED, Status.RUNNING, Status.RETRYING)
#: In these, nobody has a run in hand: what takes it back finds it here.
UNOWNED = (*UNSTARTED, Status.RETRYING)
#: A worker has a run of these in hand, or is believed to have lost it.
OWNED = (Status.RUNNING, Status.LOST)


@dataclass(frozen=True, slots=True)
class Transition:
    """A way from any of ``sources`` to any of ``targets``."""

    sources: tuple[Status, ...]
    targets: tuple[Status, ...]


def _way(sources: Iterable[Status], *targets: Status) -> Transition:
    return Transition(tuple(sources), targets)


#: Beat has the broker's word for the message.
CONFIRM = _way(UNSTARTED, Status.SENT)
#: The broker will never take the message.
GIVE_UP = _way(UNSTARTED, Status.FAILED)
#: No worker began it within expires_after.
EXPIRE = _way(UNSTARTED, Status.EXPIRED)
#: A pause, a delete, a moved one-off, a newer run: a cancel wins until the very start.
REVOKE = _way(UNOWNED, Status.REVOKED)
#: A worker begins the attempt that a message stands for.
START = _way(UNSTARTED, Status.RUNNING)
#: A worker begins the attempt that Celery's retry asked for; its predecessor ended with it, even
#: where that was not recorded yet, or was taken for lost.
START_RETRY = _way((Status.RETRYING, *OWNED), Status.RUNNING)
#: The broker delivers a message again, and the worker that had the attempt is gone.
RESTART = _way(OWNED, Status.RUNNING)
#: The broker delivers a message again, and the node that has the attempt lives: the row notes it. A
#: run that was taken for lost is that node's again, which knows whether it still executes it.
REDELIVER = _way(OWNED, Status.RUNNING)
#: A worker drops a message without beginning it.
REFUSE = _way(UNOWNED, Status.REVOKED, Status.EXPIRED, Status.FAILED)
#: A task rejects its message, for the broker to deliver it again; or a worker did not begin what it
#: was marked to run.
REQUEUE = _way((Status.RUNNING,), Status.SENT)
#: An attempt ends. One that was taken for lost ends too: its worker was only slow.
FINISH = _way(
    OWNED,
    *(Status.SUCCEEDED, Status.FAILED, Status.RETRYING, Status.REVOKED),
)
#: The same, where the run is to be sent once more already and nobody has begun it.
FINISH_BEFORE_RERUN = _way(UNSTARTED, *FINISH.targets)
#: The worker is gone; with a newer run in its place the run is revoked.
LOSE = _way((Status.RUNNING,), Status.LOST, Status.REVOKED)
#: The worker is gone, and the schedule asks for another attempt.
RERUN = _way((Status.RUNNING,), Status.PENDING)
#: The broker has forgotten the message of Celery's retry.
RESEND_RETRY = _way((Status.RETRYING,), Status.PENDING)

TRANSITIONS = {
    name: value for name, value in list(globals().items()) if isinstance(value, Transition)
}
