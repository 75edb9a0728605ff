"""Ending the runs that newer ones replace: beat asks all workers, one of them ends the run.

    a worker ends the run                      -> the worker records ``revoked``
    the broker is away                         -> asked again in the next round
    the broker refuses the request             -> the reason is noted on the run
    asked again TRIES times, the run continues -> that is noted on the run

A run with a note is not asked about again. It ends by itself; its successor was sent long before.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from celery_dynbeat.broker.base import RunPublisher
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.common.events import Event

logger = logging.getLogger(__name__)

#: Requests about one run, after the first one, which follows its claim.
TRIES = 2
#: Refusals in a row after which the broker is asked once in REFUSED_FOR seconds.
MOST_REFUSALS = 3
REFUSED_FOR = 300.0
NOT_ENDED = (
    "overlap: a newer run was sent, and no worker ended this one: cancel_previous takes a prefork"
    " or gevent pool with remote control"
)


class _Answer(Enum):
    ASKED = auto()
    AWAY = auto()
    REFUSED = auto()


class Termination:
    """Asks workers to end runs, for one beat, and knows when that has no use."""

    def __init__(self, outlet: RunPublisher) -> None:
        self._outlet = outlet
        self._tries: Mapping[str, int] = {}
        self._refusal = ""
        self._refusals = 0
        self._refused_until = 0.0
        self._logged: set[str] = set()

    def ask(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs. Raises nothing: their successors must go out."""
        if run_ids:
            self._ask(run_ids)

    def ask_again(self, run_ids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Ask about all the runs that were asked about before and continue.

        Returns those that need not be asked about any more, by the reason.
        """
        given_up = {run_id for run_id in run_ids if self._tries.get(run_id, 0) >= TRIES}
        others = [run_id for run_id in run_ids if run_id not in given_up]
        answer = self._ask(others) if others else None
        asked = int(answer is _Answer.ASKED)
        self._tries = {run_id: self._tries.get(run_id, 0) + asked for run_id in others}
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        if given_up:
            reasons[NOT_ENDED] += given_up
        if answer is _Answer.REFUSED:
            reasons[self._refusal] += others
        for reason, ids in reasons.items():
            self._warn(reason, f"runs continue beside those that replaced them: {reason}", len(ids))
        return reasons

    def _ask(self, run_ids: Sequence[str]) -> _Answer:
        if self._refusals >= MOST_REFUSALS and time.monotonic() < self._refused_until:
            return _Answer.REFUSED
        try:
            self._outlet.terminate(run_ids)
        except DispatchError as error:
            self._refusal = str(error)
            self._refusals += 1
            self._refused_until = time.monotonic() + REFUSED_FOR
            self._warn(self._refusal, f"runs not terminated: {error}", len(run_ids))
            return _Answer.REFUSED
        # Of whatever kind: the broker is away, and asked again in the next round.
        except Exception as error:  # noqa: BLE001
            self._warn(type(error).__name__, f"runs not terminated: {error}", len(run_ids))
            return _Answer.AWAY
        self._refusals = 0
        return _Answer.ASKED

    def _warn(self, reason: str, message: str, count: int) -> None:
        """Log a warning once for each reason; what follows is for those who debug."""
        level = logging.DEBUG if reason in self._logged else logging.WARNING
        self._logged.add(reason)
        logger.log(level, "%s %s", count, message, extra={"event": Event.TERMINATE_FAILED})
