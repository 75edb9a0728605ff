"""HAProxy in front of database servers: one address, and one server at a time."""

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pymysql

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program

CONFIGURATION = """\
global
  maxconn 1000
defaults
  mode tcp
  timeout connect 2s
  timeout check 1s
  timeout client 1h
  timeout server 1h
listen database
  bind 127.0.0.1:{port}
  option httpchk GET /
  # All clients stay on the server in use. A server that returns does not take them back.
  stick-table type ip size 1 nopurge
  stick on dst
  default-server inter 500ms fall 2 rise 2 on-marked-down shutdown-sessions
"""
SERVER = "  server server{number} 127.0.0.1:{port} check port {check_port}{backup}\n"


class HAProxyServer(Server):
    """A proxy that sends all clients to the first of ``servers`` that answers.

    As in production, each server has an HTTP port on which a script says whether it answers.
    """

    name: ClassVar[str] = "haproxy"
    servers: Sequence[Server] = ()

    def __init__(self) -> None:
        super().__init__()
        self._checks: list[ThreadingHTTPServer] = []

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the system schema of MariaDB, through the proxy."""
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/mysql"

    def find_programs(self) -> None:
        """Find haproxy."""
        self._haproxy = find_program("haproxy", package="haproxy")

    def prepare(self) -> None:
        """Open the HTTP ports."""
        for server in self.servers:
            check = ThreadingHTTPServer(("127.0.0.1", 0), _check_of(server))
            self._checks.append(check)
            threading.Thread(target=check.serve_forever, daemon=True).start()

    def configure(self) -> None:
        """Write the ports."""
        text = CONFIGURATION.format(port=self.port)
        for number, server in enumerate(self.servers):
            text += SERVER.format(
                number=number + 1,
                port=server.port,
                check_port=self._checks[number].server_port,
                backup=" backup" if number else "",
            )
        (self.folder / "haproxy.cfg").write_text(text)

    def command(self) -> Sequence[str | Path]:
        """Return haproxy in the foreground."""
        return [self._haproxy, "-db", "-f", self.folder / "haproxy.cfg"]

    def answers(self) -> bool:
        """Return whether a client can log in to a server behind the proxy."""
        try:
            pymysql.connect(
                host="127.0.0.1", port=self.port, user="root", connect_timeout=2
            ).close()
        except pymysql.err.MySQLError:
            return False
        return True

    def close(self) -> None:
        """Close the HTTP ports, too."""
        super().close()
        for check in self._checks:
            check.shutdown()
            check.server_close()


def _check_of(server: Server) -> type[BaseHTTPRequestHandler]:
    class Check(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if server.answers() else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
            """Log nothing."""

    return Check
