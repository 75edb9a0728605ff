"""kombu's filesystem transport for several processes: no process reads an incomplete file.

kombu opens a file under its final name and then writes into it. A process that reads it in between
gets no JSON, and the error ends a worker.
"""

import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """Writes each file under another name first."""

    # A base class of kombu's channel names the argument differently.
    def _put(self, queue: str, payload: Any, **_: Any) -> None:  # type: ignore[override]
        # kombu delivers in the order of the names.
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        file = Path(self.data_folder_out, name)
        written(file, dumps(payload)).rename(file)

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        self.control_folder.mkdir(exist_ok=True)
        file = self.control_folder / f"{exchange}.exchange"
        empty = written(file, "[]")
        with suppress(FileExistsError):
            file.hardlink_to(empty)
        empty.unlink()
        # kombu changes a file that exists under a lock.
        super()._queue_bind(exchange, *binding)


class Transport(filesystem.Transport):
    """The transport with these channels."""

    Channel = Channel


def written(file: Path, text: str) -> Path:
    """Write ``text`` under another name in the folder of ``file``, and return its path."""
    # kombu ignores files with another end of the name.
    path = file.with_name(f"{file.name}.{uuid.uuid4()}.part")
    path.write_text(text)
    return path
