"""What a server needs of the machine: its programs, a free port, a user to run as."""

import os
import pwd
import random
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

# Below the ephemeral ports of Linux (from 32768) and macOS (from 49152). A client that reconnects
# while its server is down may be given the server's own port as its local one, and then the server
# cannot come back; it may even connect to itself.
PORTS = range(20_000, 30_000)


class ServerMissingError(Exception):
    """A server is not installed: ``program`` was looked for, the Debian ``package`` brings it."""

    def __init__(self, *, program: str, package: str) -> None:
        super().__init__(
            f"no {program} on this machine, in PATH or where its package puts it;"
            f" on Debian: apt-get install {package}",
        )
        self.program = program
        self.package = package


def find_program(*names: str, package: str, folders: Iterable[Path] = ()) -> Path:
    """Return the first of ``names`` found in ``folders`` or else in PATH.

    The folders go first: some packages put a wrapper into PATH that is meant for the machine's own
    service. Raises ServerMissingError, which tells the Debian ``package`` to install.
    """
    places = [
        *map(str, folders),
        os.environ.get("PATH", os.defpath),
        "/usr/sbin",
        "/usr/local/sbin",
    ]
    path = os.pathsep.join(places)
    for name in names:
        if found := shutil.which(name, path=path):
            return Path(found)
    raise ServerMissingError(program=names[0], package=package)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on."""
    # Not the seeded generator of the test: two workers with one seed would try the same ports.
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
    """Return who shall run a server that refuses root: None when we are not root anyway."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(user for user in (*preferred, "nobody") if user in known)
