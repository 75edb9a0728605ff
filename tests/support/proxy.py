"""A TCP proxy in front of one server, which can behave like a network on a bad day.

    pass_on --> bytes go both ways                                   (how it starts)
    drop_silently --> both sides stay connected, their bytes vanish; who connects finds silence
    refuse --> who is connected is reset, who connects is refused

What vanished while it was silent never arrives: ``pass_on`` resets those connections, as a network
that comes back does with streams that have holes.
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
CALLS_WITHIN = 10.0
# Linger for no time: close() sends RST instead of FIN.
RESET = struct.pack("ii", 1, 0)


class Mode(Enum):
    """What becomes of bytes and of new connections."""

    PASS = auto()
    SILENT = auto()
    REFUSE = auto()


class Proxy:
    """A listener on a free port of 127.0.0.1 that forwards to ``port``. A context manager.

    ``connections`` counts those that it accepted, ``received`` the bytes that clients sent and
    ``forwarded`` those that reached the server.
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
        #: Clear while the proxy is silent.
        self._heard_again = asyncio.Event()
        self._heard_again.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen)
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
        """Forward again. Connections that lost bytes are reset."""
        self._call(self._pass_on)

    def drop_silently(self) -> None:
        """Swallow every byte from now on; nobody is told."""
        self._call(self._drop_silently)

    def refuse(self) -> None:
        """Reset all connections and refuse new ones."""
        self._call(self._refuse)

    def reset_all(self) -> None:
        """Reset all connections; new ones are treated as before."""
        self._call(self._reset_all)

    def _call(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALLS_WITHIN)

    async def _pass_on(self) -> None:
        self._mode = Mode.PASS
        self._heard_again.set()
        for writer in [*self._tainted]:
            self._reset(writer)
        self._tainted.clear()
        if self._server is None:
            await self._listen()

    async def _drop_silently(self) -> None:
        self._mode = Mode.SILENT
        self._heard_again.clear()
        if self._server is None:
            await self._listen()

    async def _refuse(self) -> None:
        self._mode = Mode.REFUSE
        self._heard_again.set()
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._reset_all()

    async def _reset_all(self) -> None:
        for writer in [*self._open]:
            self._reset(writer)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _wait_for_pumps(self) -> None:
        # Not cancelled: the streams of Python 3.11 log that as an error.
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            if self._mode is Mode.SILENT:
                # Nobody was asked for, so nobody will ever answer.
                self._tainted.add(writer)
                await self._pump(reader, None, writer)
            else:
                await self._join(reader, writer)
        except OSError:
            # The server is down, or somebody was reset.
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
        """Carry what ``source`` sends to ``target``, or away when the proxy is silent."""
        inbound = source.get_extra_info("sockname")[1] == self.port
        while chunk := await reader.read(CHUNK):
            self.received += len(chunk) * inbound
            if target is None or self._mode is not Mode.PASS:
                self._tainted.add(source)
                continue
            target.write(chunk)
            await target.drain()
            self.forwarded += len(chunk) * inbound
        # The end of a connection vanishes like its bytes.
        self._tainted.add(source)
        await self._heard_again.wait()

    def _end(self, writer: asyncio.StreamWriter) -> None:
        """Close in good order: what was sent last, such as the reason for the end, arrives."""
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
