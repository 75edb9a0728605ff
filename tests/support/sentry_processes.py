"""Set Sentry up in beat, in a worker and in each pool process, as docs/how-to/monitor.md shows.

Each check-in is one line of JSON in the file that ``check_in_file`` of the configuration names.
"""

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from celery import current_app
from celery.signals import beat_init, worker_init, worker_process_init
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.support.sentry_recipe import monitor

monitor("nightly")

files: list[Path] = []


class FileTransport(Transport):
    """Appends check-ins to the file."""

    def capture_envelope(self, envelope: Envelope) -> None:
        """Write the check-ins of ``envelope``."""
        for item in envelope:
            if item.type == "check_in":
                fields = {**(item.payload.json or {}), "pid": os.getpid()}
                # In append mode: processes share the file.
                with files[-1].open("a") as file:
                    file.write(json.dumps(fields) + "\n")


@beat_init.connect(weak=False)  # type: ignore[untyped-decorator]
@worker_init.connect(weak=False)  # type: ignore[untyped-decorator]
@worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
def start_sentry(**_: Any) -> None:
    """Start the client of this process."""
    # A thread has another current application.
    files.append(Path(current_app.conf.check_in_file))
    sentry_sdk.init("http://key@127.0.0.1/1", transport=FileTransport, default_integrations=False)
