"""The appearance that several statuses of a run share.

A tone is a colour and a shape, so that the colour is never the only difference.
"""

from enum import StrEnum

from celery_dynbeat.common.states import Status


class Tone(StrEnum):
    """The appearances of a run. The style sheet has a class for each."""

    SUCCESS = "success"
    FAILURE = "failure"
    ACTIVE = "active"
    WAITING = "waiting"
    INACTIVE = "inactive"


_TONES = {
    Status.PENDING: Tone.WAITING,
    Status.SENT: Tone.WAITING,
    Status.RUNNING: Tone.ACTIVE,
    Status.RETRYING: Tone.ACTIVE,
    Status.SUCCEEDED: Tone.SUCCESS,
    Status.FAILED: Tone.FAILURE,
    Status.LOST: Tone.FAILURE,
    Status.REVOKED: Tone.INACTIVE,
    Status.EXPIRED: Tone.INACTIVE,
    Status.SKIPPED: Tone.INACTIVE,
}


def tone_of(status: str) -> Tone:
    """Return the tone of a run with ``status``."""
    return _TONES[Status(status)]


def tone_class(tone: Tone) -> str:
    """Return the class that colours a mark."""
    return f"dynbeat-tone-{tone}"
