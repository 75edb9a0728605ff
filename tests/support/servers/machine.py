"""Find programs, free ports and a user for test servers."""

import os
import pwd
import random
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

# Below the ephemeral ports of Linux (from 32768) and macOS (from 49152). A client that reconnects
# while its server is down may get the server's port as its local port. The server then cannot start
# again, or the client connects to itself.
PORTS = range(20_000, 30_000)


class ServerMissingError(Exception):
    """A server is not installed: ``program`` is missing. ``fix`` is the command that gets it."""

    def __init__(self, *, program: str, fix: str) -> None:
        super().__init__(
            f"no {program} on this machine, in PATH or where its package puts it; on Debian: {fix}",
        )


def find_program(*names: str, package: str, folders: Iterable[Path] = ()) -> Path:
    """Return the first of ``names`` found in ``folders`` or else in PATH.

    The folders come first: some packages have a wrapper for the machine's service in PATH. Raises
    ServerMissingError with the Debian ``package`` to install.
    """
    search_path = [
        *map(str, folders),
        os.environ.get("PATH", os.defpath),
        "/usr/sbin",
        "/usr/local/sbin",
    ]
    path = os.pathsep.join(search_path)
    for name in names:
        if found := shutil.which(name, path=path):
            return Path(found)
    raise ServerMissingError(program=names[0], fix=f"apt-get install {package}")


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which no process listens."""
    # Not the test's seeded generator: two pytest workers with one seed would try the same ports.
    candidates = random.SystemRandom().sample(PORTS, 100)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    message = f"none of {len(candidates)} ports tried in {PORTS} is free"
    raise RuntimeError(message)


def unprivileged_user(*preferred: str) -> str | None:
    """Return the user for a server that refuses to run as root; None if not running as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(user for user in (*preferred, "nobody") if user in known)
