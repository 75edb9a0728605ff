"""Hosts on one machine: each has its own network interface and address, and can fail like a host.

A host is a network namespace of Linux. To kill or freeze it is to signal all its processes. To cut
it off is to take its interface down: packets are lost, and no connection is closed.

``enter_new_network`` gives the program its own network and process namespaces. The machine's own
network is never changed, and all processes end with the program, even after kill -9. It needs root,
iproute2 and util-linux.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

NETWORK = "10.89.0"
_BRIDGE = "hosts"
# <linux/sched.h> and <linux/prctl.h>
CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
#: Seconds.
SIGNALLED_WITHIN = 10.0


class HostError(Exception):
    """A host does not do what it should."""


def enter_new_network() -> None:
    """Continue in new namespaces of Linux, in a child. Exits with 1 if it cannot."""
    missing = [name for name in ("ip", "mount", "nsenter", "unshare") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.exit(
            f"several-hosts makes network namespaces of Linux: run it as root, and install"
            f" iproute2 and util-linux (missing: {', '.join(missing) or 'nothing'})"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET):
        sys.exit(f"several-hosts makes network namespaces: {os.strerror(ctypes.get_errno())}")
    _continue_in_child()
    # The first process of its namespace: if it is killed, the kernel kills all others.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C reaches only the first process, which passes it on.
    os.setsid()
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    # Programs name their shared memory by process ids. Those of an earlier start were the same.
    shared = ("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")  # noqa: S108
    subprocess.run(shared, check=True)
    # The first process reaps those that have ended. Otherwise Patroni would take a killed
    # PostgreSQL, which is a zombie, for a running one.
    _continue_in_child()
    _ip("link", "set", "lo", "up")
    _ip("link", "add", _BRIDGE, "type", "bridge")
    _ip("address", "add", f"{NETWORK}.1/24", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")


def _continue_in_child() -> None:
    """Return in a child. This process passes signals on to it, and exits with its status."""
    signals = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in signals:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class Host:
    """A host with an address, which ends with the program."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.folder = folder / name
        self.folder.mkdir()
        self.folder.chmod(0o777)
        #: Environment variables of all programs of the host.
        self.environment: dict[str, str] = {}
        self._outer, inner = f"port-{name}", f"wire-{name}"
        # Its only task is to keep the namespaces while all programs of the host are dead.
        keep = f"hostname {name} && exec sleep infinity"
        self._keeper = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", keep])
        self._namespace = _wait_for_namespace(self._keeper.pid)
        _ip("link", "add", self._outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", self._outer, "master", _BRIDGE, "up")
        _ip("link", "set", inner, "netns", str(self._keeper.pid))
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{self.address}/24", "dev", inner),
            ("link", "set", inner, "up"),
        ):
            self._run("ip", *command)

    def start(
        self,
        name: str,
        *command: str,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on the host. Its output goes to the end of ``<name>.log``."""
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [*self._enter(user), *command],
                cwd=self.folder,
                env={**os.environ, **self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """Return what a program has printed so far."""
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def kill(self, *, matching: str = "") -> None:
        """Kill the programs of the host whose command line contains ``matching`` by SIGKILL.

        Raises HostError if there is none, or if one survives.
        """
        self._signal(signal.SIGKILL, matching, done=lambda _: False)

    @contextmanager
    def frozen(self, *, matching: str) -> Iterator[None]:
        """Suspend programs for the block: connections stay open, without an answer."""
        self._signal(signal.SIGSTOP, matching, done=_is_stopped)
        try:
            yield
        finally:
            for pid in self._programs(matching):
                _send(pid, signal.SIGCONT)

    def _signal(
        self, number: signal.Signals, matching: str, *, done: Callable[[int], bool]
    ) -> None:
        """Send a signal until each program is gone or ``done``: it may start others meanwhile."""
        if not self._programs(matching):
            raise HostError(f"{self.name} runs no program that matches {matching!r}")
        deadline = time.monotonic() + SIGNALLED_WITHIN
        while left := [pid for pid in self._programs(matching) if not done(pid)]:
            if time.monotonic() > deadline:
                raise HostError(f"{self.name}: {number.name} has no effect on {left}")
            for pid in left:
                _send(pid, number)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Take the interface down for the block: packets are lost without an error."""
        _ip("link", "set", self._outer, "down")
        try:
            yield
        finally:
            _ip("link", "set", self._outer, "up")

    @contextmanager
    def silent(self, port: int, *, to: "Host") -> Iterator[None]:
        """Lose what a port of this host sends to another host, for the block: no answer arrives."""
        rule = f"ipproto tcp sport {port} to {to.address} blackhole".split()
        self._run("ip", "rule", "add", *rule)
        try:
            yield
        finally:
            self._run("ip", "rule", "del", *rule)

    def _run(self, *command: str) -> None:
        subprocess.run([*self._enter(), *command], check=True)

    def _enter(self, user: str | None = None) -> list[str]:
        command = ["nsenter", f"--target={self._keeper.pid}", "--net", "--uts"]
        if user:
            account = pwd.getpwnam(user)
            command += [f"--setuid={account.pw_uid}", f"--setgid={account.pw_gid}"]
        return command

    def _programs(self, matching: str = "") -> list[int]:
        """Return the ids of the living programs of the host that match."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            # A process that has ended meanwhile, or that is a zombie, has no namespace.
            with suppress(OSError):
                pid = int(entry.name)
                if pid != self._keeper.pid and _namespace_of(pid) == self._namespace:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found += [pid] if matching in command else []
        return found


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _is_stopped(pid: int) -> bool:
    try:
        # The name of the program, in parentheses, may contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return True


def _namespace_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _wait_for_namespace(pid: int) -> str:
    own, deadline = _namespace_of(os.getpid()), time.monotonic() + SIGNALLED_WITHIN
    while (namespace := _namespace_of(pid)) == own:
        if time.monotonic() > deadline:
            raise HostError("unshare makes no network namespace")
    return namespace


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
