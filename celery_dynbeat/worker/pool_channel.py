"""A one-way channel from the pool processes of a worker to its main process.

A forked process inherits the channel. A spawned process receives the sender with its arguments.

The socket preserves message boundaries. A process that is killed while it sends leaves only whole
messages, so the messages of other processes stay readable.
"""

import pickle
import socket
import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: How long ``send`` waits for space in the socket buffer. The main process reads all the time.
SEND_TIMEOUT = 5.0
#: In bytes, and the maximum for one item. The default on macOS is 2 KiB.
BUFFER_BYTES = 262_144
# macOS has no SOCK_SEQPACKET. There, datagrams serve the few processes of a development machine.
_KIND = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)


class PoolChannel(Generic[T]):
    """Carries items of one type. The main process creates it before its pool forks.

    ``send_timeout``: seconds that ``send`` waits while the buffer is full; 0 means not at all.
    """

    def __init__(self, *, send_timeout: float = SEND_TIMEOUT) -> None:
        self._receiver, self._sender = _socket_pair()
        self._receive_lock = threading.Lock()
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

    def wait(self) -> bool:
        """Wait in the main process for the next item; return False after ``stop_waiting``."""
        return bool(self._receiver.recv(1, socket.MSG_PEEK))

    def receive(self) -> list[T]:
        """Return the items that were sent and not received yet, without waiting."""
        with self._receive_lock:
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
