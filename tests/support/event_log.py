"""What tasks say of themselves, in a file that every process of a test appends to."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: How a test tells the processes of its application what they are made of.
EVENT_LOG_VARIABLE = "DYNBEAT_TEST_EVENT_LOG"
CONFIG_VARIABLE = "DYNBEAT_TEST_CONFIG"
BARE_VARIABLE = "DYNBEAT_TEST_BARE"
#: The name of the application, "proj" where it is not set.
NAME_VARIABLE = "DYNBEAT_TEST_NAME"
#: Module constants that the processes change, as JSON: {"celery_dynbeat.worker.bootsteps.X": 1}.
CONSTANTS_VARIABLE = "DYNBEAT_TEST_CONSTANTS"


class EventLog:
    """Lines of JSON; a short line that is appended in one write is never torn."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, event: str, **details: Any) -> None:
        """Append what happened."""
        when = {"pid": os.getpid(), "at": time.time()}
        # RabbitMQ notes in a header when a message was dead-lettered, as an instant.
        line = json.dumps({"event": event, **when, **details}, default=str) + "\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def read(self, event: str, run_id: str | None = None) -> Sequence[dict[str, Any]]:
        """Return what was written of ``event``, of one run or of all."""
        if not self.path.exists():
            return []
        # The last line may be on its way.
        lines = self.path.read_bytes().split(b"\n")[:-1]
        entries = [json.loads(line) for line in lines]
        return [
            entry
            for entry in entries
            if entry["event"] == event and run_id in {None, entry["run_id"]}
        ]

    def starts(self, run_id: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the starts of a task's body, of one run or of all."""
        return self.read("started", run_id)
