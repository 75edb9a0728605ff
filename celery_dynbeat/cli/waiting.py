"""Wait until a run or the runs of a request have ended, for ``--wait``."""

import time
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import timedelta

from celery_dynbeat.api import Page, RequestInfo, RunInfo
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.states import UNFINISHED, Status, was_started
from celery_dynbeat.common.text import MAX_PAGE_SIZE

#: Between two reads of a run.
POLL_SECONDS = 0.5
#: Polls without progress after which ``--wait`` prints what the runs wait for: 5 s.
STALLED_POLLS = 10
#: Owners that this text names.
MAX_OWNERS = 3


def wait_for_run(invocation: Invocation, run_id: str) -> None:
    """Return when the run has ended, print how, and exit with status 1 if it did not succeed."""
    with progress("waiting for the run") as advance:
        run = invocation.schedules.get_run(run_id)
        while run.finished_at is None:
            advance(0)
            time.sleep(POLL_SECONDS)
            run = invocation.schedules.get_run(run_id)
    invocation.output.done(_words(run), run.to_dict())
    invocation.context.exit(0 if _is_success(run) else 1)


def _is_success(run: RunInfo) -> bool:
    """Return whether a run succeeded or its task skipped it."""
    is_skipped = run.status == Status.SKIPPED and was_started(run.status, run.attempt)
    return is_skipped or run.status == Status.SUCCEEDED


def _words(run: RunInfo) -> str:
    error = f": {run.error.partition(chr(10))[0]}" if run.error else ""
    return f"run {run.id} of schedule {run.name!r} {run.status}{error}"


def end_request(invocation: Invocation, info: RequestInfo, *, wait: bool) -> None:
    """Print a new request. With ``wait``, wait for its runs, and exit with 1 if one has failed."""
    if not wait:
        invocation.output.done(request_words(info), info.to_dict())
        return
    info, ended, is_success = _wait_for_request(invocation, info)
    counts = ", ".join(f"{number} {status}" for status, number in ended.most_common())
    invocation.output.done(
        f"{request_words(info)}; of the new runs: {counts or 'none'}",
        {**info.to_dict(), "ended": dict(ended)},
    )
    invocation.context.exit(0 if is_success else 1)


def request_words(info: RequestInfo) -> str:
    """Return the progress of a request in words."""
    return (
        f"{info.kind} {info.id}: {info.status}, {info.created} of {info.total} runs created,"
        f" {info.excluded} excluded"
    )


def _wait_for_request(
    invocation: Invocation, info: RequestInfo
) -> tuple[RequestInfo, Counter[str], bool]:
    """Return when all runs have ended, the numbers of their statuses, and whether none failed."""
    stall = _Stall(invocation, info.id)
    try:
        with progress("runs created") as advance:
            while info.status == "running":
                advance(info.created + info.excluded, info.total)
                stall.check(info.created + info.excluded)
                time.sleep(POLL_SECONDS)
                info = invocation.calls.get_request(info.id)
        with progress("runs ended") as advance:
            while unfinished := sum(1 for _ in _runs_of(invocation, info, status=UNFINISHED)):
                advance(info.created - unfinished, info.created)
                stall.check(info.total + info.created - unfinished)
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        cancel = f"`dynbeat requests {info.id} --cancel`"
        invocation.output.note(f"{info.kind} {info.id} continues; {cancel} ends it")
        raise
    ended: Counter[str] = Counter()
    is_success = True
    for run in _runs_of(invocation, info):
        ended[run.status] += 1
        is_success = is_success and _is_success(run)
    return info, ended, is_success


class _Stall:
    """Prints what the runs of a request wait for, if its progress has not moved for some time."""

    def __init__(self, invocation: Invocation, request_id: int) -> None:
        self._invocation, self._request_id = invocation, request_id
        self._done, self._polls, self._printed = -1, 0, ""

    def check(self, done: int) -> None:
        """Note the progress after a poll."""
        self._polls = self._polls + 1 if done == self._done else 0
        self._done = done
        if self._polls and self._polls % STALLED_POLLS == 0:
            text = self._text()
            if text and text != self._printed:
                self._invocation.output.note(text)
                self._printed = text

    def _text(self) -> str:
        """Return how many runs wait for a place, and the owners; empty if no run waits."""
        # A late import: the help of the commands imports no SQLAlchemy.
        from celery_dynbeat.api.usage import waiting_owners  # noqa: PLC0415

        info = self._invocation.calls.get_request(self._request_id)
        if not info.waiting:
            return ""
        pending = _runs_of(self._invocation, info, status=(Status.PENDING,))
        owners = {run.owner for run in pending if run.is_waiting}
        context = self._invocation.dynbeat.context
        usage = [
            f"owner {each.owner} has {each.running}"
            f"{'' if each.max_running is None else f' of {each.max_running}'} running"
            for each in waiting_owners(context, None, settings=context.settings.for_pass())
            if each.owner in owners
        ]
        more = "; ..." if len(usage) > MAX_OWNERS else ""
        shown = "; ".join(usage[:MAX_OWNERS])
        return f"{info.waiting} of {info.total} wait for a place: {shown}{more}"


def _runs_of(
    invocation: Invocation, info: RequestInfo, *, status: Collection[str] | None = None
) -> Iterator[RunInfo]:
    """Yield the runs that the request has made."""

    def fetch(cursor: str | None) -> Page[RunInfo]:
        return invocation.calls.runs(
            # The origin of the runs is the kind of the request.
            origin=info.kind,
            status=status,
            since=info.since,
            # A rerun is some microseconds after its original.
            until=info.until + timedelta(seconds=1),
            limit=MAX_PAGE_SIZE,
            after=cursor,
        )

    for page in pages(fetch):
        yield from (run for run in page.items if run.request_id == info.id)
