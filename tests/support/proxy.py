"""A TCP proxy in front of one server that simulates network faults.

    pass_on         forward bytes in both directions (the initial mode)
    drop_silently   keep connections open and drop all bytes; new connections get no answer
    drop_answers    the same, but the bytes from clients arrive at the server
    refuse          reset all connections and refuse new ones

Dropped bytes never arrive. ``pass_on`` resets the connections that lost bytes, as TCP does after a
network failure.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import make_url

from tests.support.servers.machine import free_port

T = TypeVar("T")

CHUNK = 65_536
PORTS_TRIED = 5
CALLS_WITHIN = 10.0
# SO_LINGER with timeout 0: close() sends RST instead of FIN.
RESET = struct.pack("ii", 1, 0)


class Mode(Enum):
    """The handling of bytes and of new connections."""

    PASS = auto()
    SILENT = auto()
    UNANSWERED = auto()
    REFUSE = auto()


class Proxy:
    """A context manager that listens on a free port of 127.0.0.1 and forwards to ``port``.

    ``connections`` counts the accepted connections, ``received`` the bytes from clients, and
    ``forwarded`` the bytes that reached the server.
    """

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.connections = 0
        self.received = 0
        self.forwarded = 0
        self._target = port
        self._mode = Mode.PASS
        self._open: set[asyncio.StreamWriter] = set()
        self._tainted: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        #: Not set while the proxy is silent.
        self._is_forwarding = asyncio.Event()
        self._is_forwarding.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen_on_a_free_port)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        self._call(self._wait_for_pumps)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALLS_WITHIN)
        self._loop.close()

    def through(self, url: str) -> str:
        """Return ``url``, of a database or a broker, with the port of this proxy."""
        return make_url(url).set(port=self.port).render_as_string(hide_password=False)

    def pass_on(self) -> None:
        """Forward again, and reset the connections that lost bytes."""
        self._call(self._pass_on)

    def drop_silently(self) -> None:
        """Drop every byte from now on, without an error for either side."""
        self._call(self._drop_silently)

    def drop_answers(self) -> None:
        """Drop every byte from the server from now on, without an error for either side."""
        self._call(self._drop_answers)

    def refuse(self) -> None:
        """Reset all connections and refuse new ones."""
        self._call(self._refuse)

    def reset_all(self) -> None:
        """Reset all connections. The mode for new ones does not change."""
        self._call(self._reset_all)

    def _call(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALLS_WITHIN)

    async def _pass_on(self) -> None:
        self._mode = Mode.PASS
        self._is_forwarding.set()
        for writer in [*self._tainted]:
            self._reset(writer)
        self._tainted.clear()
        if self._server is None:
            await self._listen()

    async def _drop_silently(self) -> None:
        await self._drop(Mode.SILENT)

    async def _drop_answers(self) -> None:
        await self._drop(Mode.UNANSWERED)

    async def _drop(self, mode: Mode) -> None:
        self._mode = mode
        self._is_forwarding.clear()
        if self._server is None:
            await self._listen()

    async def _refuse(self) -> None:
        self._mode = Mode.REFUSE
        self._is_forwarding.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset_all()

    async def _reset_all(self) -> None:
        for writer in [*self._open]:
            self._reset(writer)

    async def _listen_on_a_free_port(self) -> None:
        # Another process may have taken the port since it was free.
        for tries_left in reversed(range(PORTS_TRIED)):
            try:
                await self._listen()
            except OSError:
                if not tries_left:
                    raise
                self.port = free_port()
            else:
                return

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _wait_for_pumps(self) -> None:
        # Do not cancel the tasks: asyncio streams of Python 3.11 log that as an error.
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            if self._mode is Mode.SILENT:
                # There is no connection to the server, so no answer will come.
                self._tainted.add(writer)
                await self._pump(reader, None, writer)
            else:
                await self._join(reader, writer)
        except OSError:
            # The server is down, or a connection was reset.
            self._reset(writer)
        finally:
            self._end(writer)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_connection("127.0.0.1", self._target)
        self._open.add(server)
        pumps = [
            asyncio.ensure_future(self._pump(reader, server, writer)),
            asyncio.ensure_future(self._pump(answers, writer, server)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._end(server)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        target: asyncio.StreamWriter | None,
        source: asyncio.StreamWriter,
    ) -> None:
        """Forward bytes from ``source`` to ``target``, or drop them, as the mode says."""
        inbound = source.get_extra_info("sockname")[1] == self.port
        while chunk := await reader.read(CHUNK):
            self.received += len(chunk) * inbound
            arrives = self._mode is Mode.PASS or (inbound and self._mode is Mode.UNANSWERED)
            if target is None or not arrives:
                self._tainted.update(filter(None, (source, target)))
                continue
            target.write(chunk)
            await target.drain()
            self.forwarded += len(chunk) * inbound
        # The end of a connection is dropped like its bytes.
        self._tainted.add(source)
        await self._is_forwarding.wait()

    def _end(self, writer: asyncio.StreamWriter) -> None:
        """Close with FIN, so that the last bytes arrive, such as an error message."""
        self._open.discard(writer)
        self._tainted.discard(writer)
        writer.close()

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        self._tainted.discard(writer)
        if writer.transport.is_closing():
            return
        raw: socket.socket | None = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
