"""Wait until a run has ended, for ``--wait``."""

import time

from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.progress import progress
from celery_dynbeat.client import RunInfo
from celery_dynbeat.common.run_states import Status

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
    invocation.context.exit(0 if run.status == Status.SUCCEEDED else 1)


def _words(run: RunInfo) -> str:
    error = f": {run.error.partition(chr(10))[0]}" if run.error else ""
    return f"run {run.id} of schedule {run.name!r} {run.status}{error}"
