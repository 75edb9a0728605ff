"""A RabbitMQ broker for tests, independent of a broker of the machine.

By default all Erlang nodes of a machine share epmd, the daemon that maps node names to ports, and
the cookie in the home folder. This broker has its own of both. So it needs neither a resolvable
host name nor the permissions of the service. epmd continues after ``kill`` and ``stop`` of the
broker, as on a real machine.
"""

import base64
import http.client
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import amqp
import psutil

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program, free_port

if TYPE_CHECKING:
    from tests.support.servers.processes import OwnedProcess

CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
management.tcp.ip = 127.0.0.1
management.tcp.port = {management_port}
management_agent.disable_metrics_collector = true
disk_free_limit.absolute = 1MB
max_message_size = 4000000
log.console = true
log.console.level = info
log.file = false
"""
GOOD = {200, 201, 204}


class RabbitMQServer(Server):
    """A single node with the account ``guest`` and the management API.

    The API creates a virtual host in 30 ms. rabbitmqctl needs a second, because it starts an Erlang
    VM each time.
    """

    name: ClassVar[str] = "rabbitmq"
    starts_within: ClassVar[float] = 90

    def __init__(self) -> None:
        """Create the server without starting it."""
        self._epmd_process: OwnedProcess | None = None
        super().__init__()

    def choose_ports(self) -> None:
        """Choose the other ports of an Erlang node, too."""
        super().choose_ports()
        self.management_port = free_port()
        self._distribution_port = free_port()
        self._epmd_port = free_port()
        self._end_epmd()

    @property
    def url(self) -> str:
        """The kombu URL of the virtual host ``/``."""
        return self.vhost_url("/")

    def vhost_url(self, vhost: str) -> str:
        """Return the kombu URL of a virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"

    @property
    def pid(self) -> int:
        """The id of the Erlang VM; the started process is a shell around it."""
        children = psutil.Process(super().pid).children()
        return next(child.pid for child in children if child.name().startswith("beam"))

    def create_vhost(self, vhost: str) -> None:
        """Create an empty virtual host with all permissions for ``guest``."""
        self._ask("PUT", f"/api/vhosts/{vhost}")

    def create_user(self, name: str, vhost: str, *, write: str, configure: str = ".*") -> str:
        """Create an account with permissions for names that match; return its URL."""
        self._ask("PUT", f"/api/users/{name}", {"password": name, "tags": ""})
        rights = {"configure": configure, "write": write, "read": ".*"}
        self._ask("PUT", f"/api/permissions/{vhost}/{name}", rights)
        return f"amqp://{name}:{name}@127.0.0.1:{self.port}/{vhost}"

    def delete_user(self, name: str) -> None:
        """Delete an account."""
        self._ask("DELETE", f"/api/users/{name}")

    def delete_vhost(self, vhost: str) -> None:
        """Delete a virtual host and its queues; the broker disconnects its clients."""
        self._ask("DELETE", f"/api/vhosts/{vhost}")

    def grant(self, vhost: str, *, configure: str = ".*", write: str = ".*") -> None:
        """Set the permissions of ``guest`` as patterns of names, "^$" for none; it can read all."""
        rights = {"configure": configure, "write": write, "read": ".*"}
        self._ask("PUT", f"/api/permissions/{vhost}/guest", rights)

    def unacknowledged(self, vhost: str) -> int:
        """Return the number of unacknowledged messages of a virtual host."""
        totals = "disable_stats=true&enable_queue_totals=true"
        queues = json.loads(self._ask("GET", f"/api/queues/{vhost}?{totals}"))
        return sum(queue["messages_unacknowledged"] for queue in queues)

    def find_programs(self) -> None:
        """Find the broker's own script, not Debian's wrapper for the service, and epmd."""
        package = "rabbitmq-server"
        folders = [Path("/usr/lib/rabbitmq/bin")]
        self._server = find_program("rabbitmq-server", package=package, folders=folders)
        erlang = list(Path("/usr/lib/erlang").glob("erts-*/bin"))
        self._epmd = find_program("epmd", package=package, folders=erlang)

    def prepare(self) -> None:
        """Write the cookie, and an empty file that replaces the machine's configuration."""
        home = self.folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(10))
        cookie.chmod(0o400)
        (self.folder / "rabbitmq-env.conf").touch()
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")

    def configure(self) -> None:
        """Write the configuration, and start epmd if it does not run."""
        (self.folder / "rabbitmq.conf").write_text(
            CONFIGURATION.format(port=self.port, management_port=self.management_port),
        )
        self._start_epmd()

    def close(self) -> None:
        """Kill the broker and its epmd, and delete the folder."""
        self.kill()
        self._end_epmd()
        super().close()

    def command(self) -> Sequence[str | Path]:
        """Return the broker in the foreground."""
        return [self._server]

    def environment(self) -> Mapping[str, str]:
        """Return the broker's own node name, ports and folders."""
        folders = {
            "RABBITMQ_CONF_ENV_FILE": "rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": "rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": "advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": "enabled_plugins",
            "RABBITMQ_PLUGINS_EXPAND_DIR": "plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": "generated",
            "RABBITMQ_SCHEMA_DIR": "schema",
            "RABBITMQ_MNESIA_BASE": "mnesia",
            "RABBITMQ_LOG_BASE": "log",
            "RABBITMQ_PID_FILE": "rabbitmq.pid",
            "HOME": "home",
        }
        return {
            **{name: str(self.folder / part) for name, part in folders.items()},
            "RABBITMQ_NODENAME": f"dynbeat{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def answers(self) -> bool:
        """Return whether a client can log in. A node starts its listener last."""
        connection = amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=2, read_timeout=5)
        try:
            connection.connect()
        except (OSError, amqp.AMQPError):
            return False
        else:
            return True
        finally:
            connection.collect()

    def _start_epmd(self) -> None:
        if self._epmd_process is None or self._epmd_process.exit_status is not None:
            self._end_epmd()
            self._epmd_process = self.launch(
                [self._epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"],
                environment={},
            )

    def _end_epmd(self) -> None:
        if self._epmd_process:
            self._epmd_process.kill()
            self._epmd_process = None

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=10)
        account = base64.b64encode(b"guest:guest").decode()
        try:
            headers = {"Authorization": f"Basic {account}", "Content-Type": "application/json"}
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status not in GOOD:
                raise RuntimeError(f"{method} {path}: {answer.status} {text}")
            return text
        finally:
            connection.close()
