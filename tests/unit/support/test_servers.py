"""Start, stop and failures of a test server, with a shell script as the server."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.servers import RedisServer, Server, ServerFailedError, ServerMissingError
from tests.support.servers.machine import PORTS, find_program, free_port
from tests.support.servers.processes import is_alive
from tests.support.waiting import wait_until


class ScriptServer(Server):
    """A shell with one child. It answers as soon as it has created a file."""

    name = "script"
    starts_within = 5
    script = "sleep 60 & touch up; wait"

    @property
    def url(self):
        return f"script://127.0.0.1:{self.port}"

    def find_programs(self):
        pass

    def command(self):
        return ["/bin/sh", "-c", self.script]

    def answers(self):
        return (self.folder / "up").exists()

    def listens(self):
        return True


class BrokenServer(ScriptServer):
    script = "echo the disk is full >&2; exit 3"


class UnpreparedServer(ScriptServer):
    def prepare(self):
        self.run(["/bin/sh", "-c", "echo no such locale >&2; exit 4"])


class SilentServer(ScriptServer):
    starts_within = 0.1
    script = "echo thinking; exec sleep 60"


class PortTakenServer(ScriptServer):
    script = "echo bind: Address already in use >&2; exit 1"


class PortTakenOnceServer(ScriptServer):
    script = (
        f"test -e second || {{ touch second; {PortTakenServer.script}; }}; {ScriptServer.script}"
    )


def family_of(server):
    parent = psutil.Process(server.pid)
    return [parent, *parent.children(recursive=True)]


def test_a_missing_program_is_named_together_with_its_package():
    with pytest.raises(ServerMissingError, match=r"no no-such-db .* apt-get install no-such"):
        find_program("no-such-db", "nor-such-db", package="no-such")


def test_a_program_in_the_given_folder_takes_precedence_over_path(tmp_path):
    program = tmp_path / "sh"
    program.touch(mode=0o755)

    assert find_program("sh", package="dash", folders=[tmp_path]) == program


def test_ports_are_free_and_outside_the_range_of_clients():
    port = free_port()

    assert port in PORTS
    assert port != free_port()


def test_the_error_of_a_server_that_exits_at_once_contains_its_log():
    with pytest.raises(ServerFailedError, match=r"(?s)status 3 after .*the disk is full"):
        BrokenServer().__enter__()


def test_the_error_of_a_server_without_data_contains_the_reason():
    with pytest.raises(ServerFailedError, match=r"(?s)status 4:.*no such locale"):
        UnpreparedServer().__enter__()


def test_a_server_that_does_not_answer_in_time_is_killed_and_the_error_contains_its_log():
    server = SilentServer()

    with pytest.raises(ServerFailedError, match=r"(?s)did not answer after .*thinking"):
        server.start()

    assert not server.running
    server.close()


def test_a_new_server_whose_port_is_taken_starts_on_another_port():
    server = PortTakenOnceServer()
    first = server.port

    with server:
        assert server.running
        assert server.port != first


def test_the_error_of_a_server_without_a_free_port_contains_its_log():
    with pytest.raises(ServerFailedError, match=r"(?s)status 1 .*Address already in use"):
        PortTakenServer().__enter__()


def test_a_server_that_was_started_keeps_its_port_even_when_it_is_taken():
    with ScriptServer() as server:
        port = server.port
        server.kill()
        (server.folder / "up").unlink()
        server.script = PortTakenServer.script

        with pytest.raises(ServerFailedError, match="Address already in use"):
            server.start()

        assert server.port == port


def test_another_server_that_answers_on_the_port_does_not_count_as_this_server(own_server):
    other, ours = own_server(RedisServer), RedisServer()
    ours.port = other.port

    with ours:
        assert ours.port != other.port
        assert ours.listens()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_ended_server_leaves_no_process_and_keeps_its_folder(end):
    with ScriptServer() as server:
        family = family_of(server)

        getattr(server, end)()

        assert not any(map(is_alive, family))
        assert (server.folder / "up").exists()


def test_a_restarted_server_is_another_process_on_the_same_port():
    with ScriptServer() as server:
        before = (server.pid, server.url)

        server.restart()

        assert server.url == before[1]
        assert server.pid != before[0]


def test_a_server_that_another_process_killed_can_be_started_again():
    with ScriptServer() as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running, within=5)

        server.start()

        assert server.folder.exists()
        assert server.running


def test_a_closed_server_deletes_its_folder():
    with ScriptServer() as server:
        folder = server.folder

    assert not folder.exists()


OWNER = """
import sys, time
from tests.support.servers import Server
from tests.unit.support.test_servers import ScriptServer
server = ScriptServer()
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_the_process_that_started_it(signal_number):
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        pid, folder = owner.stdout.readline().split()
        server = psutil.Process(int(pid))

        owner.send_signal(signal_number)

    wait_until(lambda: not is_alive(server), within=10)
    wait_until(lambda: not Path(folder).exists(), within=10)
