"""A one-way channel from the pool processes of a worker to its main process, inherited by fork.

The socket keeps message boundaries. A process that is killed while it sends leaves whole messages,
and no part of one that would spoil what the other processes send.
"""

import pickle
import socket
import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: For room in the buffer: the main process reads all the time, unless it is stopped.
SEND_TIMEOUT = 5.0
#: In bytes. One item must fit in; macOS takes 2 KiB unless told otherwise.
BUFFER = 262_144
# Not on macOS, whose datagrams do for a few processes.
_KIND = getattr(socket, "SOCK_SEQPACKET", socket.SOCK_DGRAM)


class PoolChannel(Generic[T]):
    """Carries items of one type. Made by the main process before its pool forks."""

    def __init__(self) -> None:
        self._receiver, self._sender = self._pair()
        self._receiving = threading.Lock()
        # The main process keeps this end open, for the children that it forks later.
        self._sender.settimeout(SEND_TIMEOUT)

    def _pair(self) -> tuple[socket.socket, socket.socket]:
        try:
            pair = socket.socketpair(socket.AF_UNIX, _KIND)
        except OSError:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        return pair

    def send(self, item: T) -> bool:
        """Send ``item`` from a pool process; False when the main process does not take it."""
        try:
            self._sender.send(pickle.dumps(item))
        except OSError:
            return False
        return True

    def wait(self) -> bool:
        """Wait in the main process for the next item; False when the channel was closed."""
        return bool(self._receiver.recv(1, socket.MSG_PEEK))

    def receive(self) -> list[T]:
        """Return the items that were sent and not received yet, without waiting."""
        with self._receiving:
            return list(iter(self._next, None))

    def _next(self) -> Any:
        try:
            data = self._receiver.recv(BUFFER, socket.MSG_DONTWAIT)
        except OSError:
            return None
        # Only processes that this one forked have the other end.
        return pickle.loads(data) if data else None  # noqa: S301

    def close_receiver(self) -> None:
        """Close the main process's end in a pool process that inherited it."""
        self._receiver.close()

    def stop_waiting(self) -> None:
        """Let ``wait`` return False. What was sent can still be received."""
        self._receiver.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close both ends."""
        self._receiver.close()
        self._sender.close()
