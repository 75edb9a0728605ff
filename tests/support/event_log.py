"""A log file to which tasks in all processes of a test append events."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Environment variables that configure the processes of a test's application.
EVENT_LOG_VARIABLE = "DYNBEAT_TEST_EVENT_LOG"
CONFIG_VARIABLE = "DYNBEAT_TEST_CONFIG"
BARE_VARIABLE = "DYNBEAT_TEST_BARE"
#: The name of the application; the default is "proj".
NAME_VARIABLE = "DYNBEAT_TEST_NAME"
#: Module constants that the processes set, as JSON: {"celery_dynbeat.worker.bootsteps.X": 1}.
CONSTANTS_VARIABLE = "DYNBEAT_TEST_CONSTANTS"


class EventLog:
    """Lines of JSON. Each event is one write of a short line, which is atomic."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, **details: Any) -> None:
        """Append an event."""
        common = {"pid": os.getpid(), "at": time.time()}
        # default=str: RabbitMQ stores the time of a dead-lettering in a header, as a datetime.
        line = json.dumps({"event": event, **common, **details}, default=str) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def read(self, event: str, run_id: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the entries of ``event``, of one run or of all runs."""
        if not self.path.exists():
            return []
        # The last line may be incomplete.
        lines = self.path.read_bytes().split(b"\n")[:-1]
        entries = [json.loads(line) for line in lines]
        return [
            entry
            for entry in entries
            if entry["event"] == event and run_id in {None, entry["run_id"]}
        ]

    def starts(self, run_id: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the starts of task bodies, of one run or of all runs."""
        return self.read("started", run_id)
