"""The commands as processes: pipes, terminals, wrong applications, exit statuses, completion."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios

import pytest

from celery_dynbeat import Every
from tests.support.event_log import BARE_VARIABLE, CONFIG_VARIABLE, EVENT_LOG_VARIABLE
from tests.support.processes import REPOSITORY
from tests.support.sites import OWNER, site
from tests.support.waiting import wait_until

WITHIN = 30


@pytest.fixture
def installation(site_folder, postgresql_url):
    """Return an installation on PostgreSQL whose broker is never used."""
    with site(site_folder, database_url=postgresql_url, broker_url="memory://") as made:
        yield made


@pytest.fixture
def offline(site_folder, sqlite_url):
    """Return an installation on SQLite."""
    with site(site_folder, database_url=sqlite_url, broker_url="memory://") as made:
        yield made


def environment(made, **more):
    return {
        **{key: value for key, value in os.environ.items() if key != "CI"},
        "PYTHONPATH": str(REPOSITORY),
        CONFIG_VARIABLE: json.dumps(made.config),
        EVENT_LOG_VARIABLE: str(made.event_log.path),
        **more,
    }


def celery(*arguments):
    return [sys.executable, "-m", "celery", "-A", "tests.support.proj", *arguments]


def dynbeat(made, *arguments, **more):
    """Run a command to its end, without a terminal."""
    return subprocess.run(
        celery("dynbeat", *arguments),
        env=environment(made, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN,
    )


def _restore_sigint():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A command on a pseudo terminal of a given width."""

    def __init__(self, made, *arguments, columns):
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, columns))
        more = {"TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            celery("dynbeat", *arguments),
            env={k: v for k, v in environment(made, **more).items() if k != "COLUMNS"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # A shell without job control starts `make test &` with SIGINT ignored.
            preexec_fn=_restore_sigint,  # noqa: PLW1509 - it takes no lock
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, text):
        wait_until(lambda: text in self._read(), within=WITHIN, message=f"{text!r} is not shown")

    def wait(self):
        """Return the exit status."""
        wait_until(lambda: self._read() is not None and self._ended(), within=WITHIN)
        self._read()
        return self.process.returncode

    def _ended(self):
        return self.process.poll() is not None

    def _read(self):
        try:
            while piece := os.read(self._master, 65536):
                self.text += piece.decode()
        except OSError:
            # Nothing to read now, or the command has closed its side.
            pass
        return self.text


def test_a_pipe_gets_columns_between_tabs(installation):
    owner = ("--owner", OWNER)
    added = dynbeat(installation, "add", "n", "--task", "probe.record", "--trigger", "60s", *owner)
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.startswith(f"added schedule 'n' of owner '{OWNER}'; next run ")

    shown = dynbeat(installation, "list", *owner)
    assert shown.stdout.split("\t")[:5] == [OWNER, "n", "probe.record", "PT1M", "active"]


def test_a_terminal_asks_before_a_delete(offline):
    offline.mine.create("n", task="probe.record", trigger=Every(60))

    with Terminal(offline, "delete", "n", "--owner", OWNER, columns=80) as terminal:
        terminal.wait_for("Continue? [y/N]")
        terminal.type("n\n")
        assert terminal.wait() == 1
    assert "nothing was changed" in terminal.text
    assert offline.mine.get("n")

    with Terminal(offline, "delete", "n", "--owner", OWNER, columns=80) as terminal:
        terminal.wait_for("Continue? [y/N]")
        os.kill(terminal.process.pid, signal.SIGINT)
        # Python acts on a signal between the prompt and the read when the read returns.
        terminal.type("\n")
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    assert offline.mine.get("n")


def test_a_closed_pipe_ends_a_command_quietly(offline):
    new = {"owner": OWNER, "task": "probe.record", "trigger": Every(60)}
    offline.dynbeat.schedules.create_many({**new, "name": f"n{n}"} for n in range(2_000))

    command = subprocess.Popen(
        celery("dynbeat", "list", "--owner", OWNER, "--all", "--json"),
        env=environment(offline),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with command:
        assert json.loads(command.stdout.readline())["name"] == "n0"
        command.stdout.close()
        errors = command.stderr.read()

    assert (command.returncode, errors) == (141, "")


def test_an_application_without_dynbeat_is_one_line(offline):
    bare = dynbeat(offline, "list", **{BARE_VARIABLE: "1"})
    assert bare.returncode == 1
    assert "add `dynbeat = Dynbeat(app)` to the module that -A names" in bare.stderr
    assert len(bare.stderr.splitlines()) == 1
