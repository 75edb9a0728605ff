"""Wait until a run or the runs of a batch have ended, for ``--wait``."""

import time
from collections.abc import Iterator

from celery_dynbeat.api import BatchResult, Page, RunInfo
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.common.states import Status, was_started
from celery_dynbeat.common.text import MAX_PAGE_SIZE, counted

#: Between two reads of a run.
POLL_SECONDS = 0.5


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


def end_batch(invocation: Invocation, result: BatchResult, *, wait: bool, repeat: str = "") -> None:
    """Print a new batch. With ``wait``, wait for its runs, and exit with 1 if one has failed.

    ``repeat`` has further options of the command for what is left.
    """
    batch_id, words = result.batch_id, _batch_words(result, repeat=repeat)
    if batch_id is None or not wait:
        invocation.output.done(words, result.to_dict())
        return
    try:
        with progress("runs ended") as advance:
            while (info := invocation.calls.get_batch(batch_id)).unfinished:
                advance(info.total - info.unfinished, info.total)
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        cancel = f"`dynbeat cancel --batch {batch_id}`"
        invocation.output.note(f"batch {batch_id} continues; {cancel} ends it")
        raise
    counts = ", ".join(f"{number} {status}" for status, number in info.counts.items())
    invocation.output.done(
        f"{words}; of the runs: {counts}",
        {**result.to_dict(), "ended": dict(info.counts)},
    )
    is_success = all(map(_is_success, _unsuccessful(invocation, batch_id)))
    invocation.context.exit(0 if is_success else 1)


def _batch_words(result: BatchResult, *, repeat: str) -> str:
    """Return what the call has recorded, and what is left."""
    words = f"recorded {counted(result.created, 'run')}, {result.excluded} excluded"
    if result.batch_id is not None:
        words = f"batch {result.batch_id}: {words}"
    if result.left_since is not None:
        # Exact, because it is the next --since.
        words += f"; more are left: repeat with --since {result.left_since.isoformat()}{repeat}"
    return words


def _unsuccessful(invocation: Invocation, batch_id: str) -> Iterator[RunInfo]:
    """Yield the runs of an ended batch that have not succeeded."""
    statuses = [each for each in Status if each != Status.SUCCEEDED]

    def fetch(cursor: str | None) -> Page[RunInfo]:
        return invocation.calls.runs(
            batch_id=batch_id, status=statuses, limit=MAX_PAGE_SIZE, after=cursor
        )

    for page in pages(fetch):
        yield from page.items
