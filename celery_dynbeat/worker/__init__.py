"""The socket and the shared memory by which pool processes report to the main process of a worker.

A forked process inherits both. A spawned process receives them with its arguments.

The socket preserves message boundaries. A process that is killed while it sends leaves only whole
messages, so the messages of other processes stay readable.

The memory says which run each process executes. The main process does not always know this run.
When it loses the broker connection, it drops the requests that a pool process has received and not
accepted yet, although the process may have started them. Each process therefore writes its run to
its slot, which has 44 bytes of memory and needs no system call.

``SkipRun``, ``PostponeRun``, and the note that a task leaves on its request, are also in this
module. The main process unpickles these exceptions, and a task module that uses ``SkipRun`` imports
no other code of the worker.
"""

import os
import pickle
import socket
import struct
from collections.abc import Collection
from datetime import datetime
from multiprocessing.connection import wait
from typing import Any, Generic, TypeVar

from billiard.process import current_process
from billiard.sharedctypes import RawArray
from celery.exceptions import Ignore

T = TypeVar("T")

#: The time for which ``send`` waits for space in the socket buffer. The main process reads all the
#: time.
SEND_TIMEOUT = 5.0
#: In bytes, and the maximum for one item. The default on macOS is 2 KiB.
BUFFER_BYTES = 262_144
# macOS has no SOCK_SEQPACKET. There, datagrams serve the few processes of a development machine.
_KIND = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)
#: A process id, and a run id in ASCII.
_SLOT = struct.Struct("=q36s")
#: Further pool processes have no slot.
_SLOT_COUNT = 1_024
_EMPTY = bytes(_SLOT.size)
#: Characters of the reason of a SkipRun. A longer one is cut.
REASON_LENGTH = 500


class SkipRun(Ignore):
    """Raise it in a task to end the run as ``skipped``, with a reason of up to 500 characters.

    The run is neither a success nor a failure. It is not retried, and it neither ends nor extends a
    series of failures. In a task that no schedule sent, it acts as Celery's ``Ignore``: the worker
    acknowledges the message and stores no result.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class PostponeRun(Ignore):
    """Ends the attempt of a run that beat sends again at ``until``. See ``CurrentRun.postpone``."""

    def __init__(self, until: datetime) -> None:
        super().__init__(until)
        self.until = until

    def __str__(self) -> str:
        return f"postponed until {self.until:%Y-%m-%d %H:%M:%S} UTC"


_NOTE = "dynbeat_note"


class _Note(str):
    """A note on a request. Headers of a message also become attributes, but they are not notes."""

    __slots__ = ()


def set_note(request: Any, text: str) -> None:
    """Keep ``text`` on the request of an attempt. The outcome of the attempt carries it."""
    setattr(request, _NOTE, _Note(text))


def note_of(request: Any) -> str | None:
    """Return the text that the task of ``request`` noted, or None if it noted none."""
    note = getattr(request, _NOTE, None)
    return (str(note) or None) if isinstance(note, _Note) else None


class PoolChannel(Generic[T]):
    """Carries items of one type. The main process creates it before its pool forks.

    ``send_timeout`` is the number of seconds that ``send`` waits while the buffer is full. With 0,
    it does not wait.
    """

    def __init__(self, *, send_timeout: float = SEND_TIMEOUT) -> None:
        self._receiver, self._sender = _socket_pair()
        # The sender stays open in the main process, for the processes that it starts later.
        self._sender.settimeout(send_timeout)

    def __getstate__(self) -> dict[str, Any]:
        """Return the sender, for a process that billiard spawns."""
        return {"_sender": self._sender, "timeout": self._sender.gettimeout()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Create the end of a pool process."""
        self._sender = state["_sender"]
        self._sender.settimeout(state["timeout"])

    def send(self, item: T) -> bool:
        """Send ``item`` from a pool process; return False if the main process does not read it."""
        try:
            self._sender.send(pickle.dumps(item))
        except OSError:
            return False
        return True

    def wait(self, seconds: float | None = None) -> bool:
        """Wait in the main process for the next item; return False after ``stop_waiting``.

        Also return True after ``seconds`` without an item.
        """
        if not wait([self._receiver], seconds):
            return True
        try:
            return bool(self._receiver.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            # Another thread has received it.
            return True

    def receive(self) -> list[T]:
        """Return the items that were sent and not received yet, without waiting.

        Two threads may not call it at once.
        """
        return list(iter(self._next, None))

    def _next(self) -> Any:
        try:
            data = self._receiver.recv(BUFFER_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return None
        # Safe to unpickle: only processes that this one started have the other end.
        return pickle.loads(data) if data else None  # noqa: S301

    def close_receiver(self) -> None:
        """Close the main process's end, in a pool process that inherited it."""
        if hasattr(self, "_receiver"):
            self._receiver.close()

    def stop_waiting(self) -> None:
        """Make ``wait`` return False. Items that were sent can still be received."""
        self._receiver.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close both ends."""
        self._receiver.close()
        self._sender.close()


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    try:
        pair = socket.socketpair(socket.AF_UNIX, _KIND)
    except OSError:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return pair


class PoolSlots:
    """One slot per pool process. The main process creates the slots before its pool starts."""

    def __init__(self) -> None:
        # Forked processes inherit this memory, and billiard passes it to spawned processes.
        self._memory = RawArray("c", _SLOT_COUNT * _SLOT.size)

    def begin(self, run_id: str) -> None:
        """Write to the slot of this process that it executes a run."""
        offset = _own_offset()
        if offset is not None:
            self._memory[offset : offset + _SLOT.size] = _SLOT.pack(os.getpid(), run_id.encode())

    def end(self) -> None:
        """Clear the slot of this process."""
        offset = _own_offset()
        if offset is not None:
            self._memory[offset : offset + _SLOT.size] = _EMPTY

    def executed(self) -> Collection[tuple[int, str]]:
        """Return the process id and the run id in each slot. The process may be dead."""
        slots = _SLOT.iter_unpack(self._memory[:])
        return {(pid, run_id.decode("ascii", "replace")) for pid, run_id in slots if pid}


def _own_offset() -> int | None:
    # The pool numbers its living processes from 0.
    index = getattr(current_process(), "index", None)
    return None if index is None or index >= _SLOT_COUNT else int(index) * _SLOT.size
