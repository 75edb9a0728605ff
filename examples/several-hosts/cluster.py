"""The programs of each host, as a supervisor keeps them: ``boot`` starts those that have ended.

server1..3  etcd, Patroni with PostgreSQL, RabbitMQ
app1..2     a beat, a worker, an API server
ops         Flower, Prometheus
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import amqp
import psycopg
from hosts import Host, HostError

HERE = Path(__file__).parent
DATABASE, PASSWORD = "several_hosts", "demo"
CONCURRENCY = 2
PATRONI = os.environ.get("PATRONI", "patroni")
RABBITMQ_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
#: Seconds after which a heartbeat is old. It is written each third of dynbeat_node_timeout, 10 s.
HEARTBEAT_AGE = 12
DISK_SIZE = "1500m"

RABBITMQ = """\
listeners.tcp.1 = {address}:5672
loopback_users = none
log.console = true
log.console.level = warning
log.file = false
# Of two halves of a divided cluster, only the one with the majority accepts messages.
cluster_partition_handling = pause_minority
# Seconds. A node that was cut off is noticed after about this time, and the queues that it led get
# new leaders. The default is 60.
net_ticktime = 15
cluster_formation.peer_discovery_backend = classic_config
"""
PROMETHEUS = """\
global: {{scrape_interval: 5s, evaluation_interval: 5s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: dynbeat-beat
    static_configs: [{{targets: [{beats}]}}]
"""

#: With two parameters: begin and end of a period.
LONGEST_GAP = """
    WITH period (b, e) AS (VALUES (%s::timestamptz, %s::timestamptz)),
         times AS (SELECT sent_at FROM dynbeat_run, period WHERE sent_at BETWEEN b AND e
                   UNION ALL SELECT b FROM period UNION ALL SELECT e FROM period),
         gaps AS (SELECT sent_at - lag(sent_at) OVER (ORDER BY sent_at) AS gap FROM times)
    SELECT extract(epoch FROM max(gap)) FROM gaps
"""
#: How many beats and workers have made progress lately. With one parameter: seconds.
PROGRESSING = """
    SELECT kind, count(*) FROM dynbeat_node
    WHERE progressed_at > clock_timestamp() - make_interval(secs => %s)
    GROUP BY kind ORDER BY kind
"""
#: What a part that is away causes.
FAILURES = (OSError, subprocess.SubprocessError, HTTPException, ValueError, psycopg.Error)


class ClusterError(Exception):
    """A part of the cluster did not start, or did not do what it should."""


def wait_until(condition: Callable[[], object], *, within: float, what: str) -> None:
    """Return when ``condition`` is true. An error means that it is not. Raises ClusterError."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with suppress(*FAILURES):
            if condition():
                return
        time.sleep(0.2)
    raise ClusterError(f"not within {within:g} s: {what}")


class Cluster:
    """All hosts. ``boot(host)`` starts what does not run on it."""

    def __init__(self, folder: Path, *, synchronous: bool) -> None:
        self.folder = folder
        self.servers = [Host(f"server{n}", 10 + n, folder) for n in (1, 2, 3)]
        self.apps = [Host(f"app{n}", 20 + n, folder) for n in (1, 2)]
        self.ops = Host("ops", 31, folder)
        self.starts = folder / "starts.jsonl"
        self._synchronous = synchronous
        self._clock_of_postgres: dict[Host, dict[str, str]] = {}
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        hosts = "&".join(f"host={server.address}:5432" for server in self.servers)
        #: What the programs of the application have in their environment.
        self.environment = {
            # libpq tries the servers in this order, until one is the primary.
            "DATABASE_URL": f"postgresql+psycopg://postgres:{PASSWORD}@/{DATABASE}?{hosts}"
            "&target_session_attrs=read-write",
            "BROKER_URL": ";".join(f"amqp://guest:guest@{each.address}//" for each in self.servers),
            "STARTS": str(self.starts),
            "C_FORCE_ROOT": "1",
        }

    # Start

    def set_clocks(self, faketime: str) -> None:
        """Let the database of server2 be 2 s ahead, and the programs of app2 5 minutes behind.

        ``faketime`` is the path of the library. Call it before ``start``.
        """
        # Two names of one switch, of different versions. Threads that wait would wait forever.
        common = {
            "LD_PRELOAD": faketime,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self._clock_of_postgres[self.servers[1]] = {**common, "FAKETIME": "+2s"}
        self.apps[1].environment = {**common, "FAKETIME": "-300s"}

    def start(self) -> None:
        """Start everything; return when all answer."""
        for server in self.servers:
            self._write_files(server)
            self._run_server(server, "etcd")
        for server in self.servers:
            self._run_server(server, "patroni")
        # One after the other: nodes that start at the same time may each found a cluster.
        for server in self.servers:
            self._run_server(server, "rabbitmq")
            wait_until(partial(self._accepts, server), within=60, what="RabbitMQ")
        if (nodes := self._broker_nodes()) != len(self.servers):
            raise ClusterError(f"the cluster of RabbitMQ has {nodes} nodes")
        wait_until(lambda: self.leader() is not None, within=90, what="a leader of PostgreSQL")
        wait_until(self._has_replicas, within=90, what="two replicas of PostgreSQL")
        self.command("dynbeat", "schema", "upgrade")
        for host in (*self.apps, self.ops):
            self.boot(host)
        for host in self.apps:
            wait_until(partial(self._answers, host), within=60, what="an API server")

    def boot(self, host: Host) -> None:
        """Start the programs of the host that do not run, as its supervisor does."""
        if host in self.servers:
            for name in ("etcd", "patroni", "rabbitmq"):
                self._run_server(host, name)
        elif host in self.apps:
            self._run_celery(host, "beat", "-l", "INFO", "-n", "beat@%h", "--pidfile=")
            worker = ("-l", "WARNING", "-n", "worker@%h", "-c", str(CONCURRENCY))
            self._run_celery(host, "worker", *worker)
            server = (sys.executable, "-m", "uvicorn", "api:api", "--log-level=warning")
            self._run(host, "api", *server, "--host", host.address)
        else:
            # Events of workers cost as much as the runs; the pages of dynbeat do not need them.
            flower = (
                f"--address={host.address}",
                "--basic-auth=demo:demo",
                "--enable-events=False",
            )
            self._run_celery(host, "dynbeat", "flower", *flower)
            if shutil.which("prometheus"):
                options = {
                    "config.file": self._prometheus_file(),
                    "storage.tsdb.path": host.folder / "prometheus",
                    "web.listen-address": f"{host.address}:9090",
                }
                given = [f"--{name}={value}" for name, value in options.items()]
                self._run(host, "prometheus", "prometheus", *given)

    def command(self, *arguments: str) -> str:
        """Run ``celery -A app ...`` on the operators' host, and return what it printed."""
        command = [sys.executable, "-m", "celery", "-A", "app", *arguments]
        name = f"command-{arguments[-1]}"
        status = self.ops.start(name, *command, environment=self._application()).wait(60)
        if status:
            raise ClusterError(f"{' '.join(arguments)}: status {status}\n{self.ops.log(name)}")
        return self.ops.log(name)

    def stop(self) -> None:
        """Kill all programs, and remove the file systems."""
        for host in (*self.servers, *self.apps, self.ops):
            with suppress(HostError):
                host.kill()
        for server in self.servers:
            subprocess.run(["umount", "--lazy", str(server.folder / "disk")], check=False)

    # What the cluster is like

    def leader(self) -> Host | None:
        """Return the server whose PostgreSQL is the primary, by Patroni; None if there is none."""
        names = [name for name, role in self._roles().items() if role == "leader"]
        return next((server for server in self.servers if server.name in names), None)

    def replica(self) -> Host:
        """Return a server whose PostgreSQL is a replica."""
        return next(server for server in self.servers if server is not self.leader())

    def is_whole(self) -> bool:
        """Return whether all servers are members again, and all programs work."""
        return (
            self.leader() is not None
            and self._has_replicas()
            and self._has_brokers()
            and all(self._answers(app) for app in self.apps)
            and self.sql(PROGRESSING, HEARTBEAT_AGE) == [("beat", 2), ("worker", 2)]
        )

    def ask(self, host: Host, path: str = "/users/0/reminders", method: str = "GET") -> Any:
        """Return the answer of an API server as JSON, None if it gives none."""
        request = urllib.request.Request(f"http://{host.address}:8000{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                return json.load(answer)
        except FAILURES:
            return None

    def switch_over(self) -> None:
        """Move the leader to another server, as an operator does."""
        leader = self.leader()
        assert leader is not None
        request = urllib.request.Request(
            f"http://{leader.address}:8008/switchover",
            data=json.dumps({"leader": leader.name}).encode(),
            method="POST",
        )
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Execute one statement at the primary; return its rows."""
        hosts = ",".join(server.address for server in self.servers)
        dsn = f"host={hosts} user=postgres password={PASSWORD} dbname={DATABASE} connect_timeout=3"
        with psycopg.connect(f"{dsn} target_session_attrs=read-write", autocommit=True) as session:
            cursor = session.execute(statement.encode(), parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def longest_gap(self, begin: datetime, end: datetime) -> float:
        """Return the longest time between two runs that beats sent in a period, in seconds."""
        longest = self.sql(LONGEST_GAP, begin, end)
        return float(longest[0][0])

    def fired_alerts(self) -> list[str] | None:
        """Return the names of the rules that have fired; None if Prometheus does not answer."""
        query = "count by (alertname) (last_over_time(ALERTS{alertstate='firing'}[1d]))"
        url = f"http://{self.ops.address}:9090/api/v1/query?{urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return None
        return sorted(each["metric"]["alertname"] for each in found)

    # The programs

    def _run_server(self, host: Host, name: str) -> None:
        if name == "etcd":
            self._run(host, name, "etcd", "--config-file", "etcd.yml")
        elif name == "patroni":
            # As postgres: root would own the shared memory of libfaketime.
            clock = [
                f"{key}={value}" for key, value in self._clock_of_postgres.get(host, {}).items()
            ]
            self._run(host, name, "env", *clock, PATRONI, "patroni.yml", user="postgres")
        else:
            program = str(RABBITMQ_PROGRAMS / "rabbitmq-server")
            self._run(host, name, program, environment=self._rabbitmq_environment(host))

    def _run_celery(self, host: Host, name: str, *arguments: str) -> None:
        self._run(host, name, sys.executable, "-m", "celery", "-A", "app", name, *arguments)

    def _run(self, host: Host, name: str, *command: str, **options: Any) -> None:
        running = self._running.get((host.name, name))
        if running is None or running.poll() is not None:
            if host not in self.servers:
                options["environment"] = self._application()
            self._running[host.name, name] = host.start(name, *command, **options)

    def _application(self) -> dict[str, str]:
        return {**self.environment, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}

    def _rabbitmq_environment(self, host: Host) -> dict[str, str]:
        base = str(host.folder / "rabbitmq")
        return {
            "RABBITMQ_NODENAME": f"rabbit@{host.address}",
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_CONF_ENV_FILE": f"{base}/env.conf",
            "RABBITMQ_CONFIG_FILE": f"{base}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{base}/plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{base}/generated",
            "RABBITMQ_SCHEMA_DIR": f"{base}/schema",
            "RABBITMQ_MNESIA_BASE": f"{base}/mnesia",
            "RABBITMQ_LOG_BASE": f"{base}/log",
            "RABBITMQ_PID_FILE": f"{base}/pid",
            # Three nodes share this machine: one scheduler each, which does not busy-wait.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "HOME": base,
        }

    def _roles(self) -> dict[str, str]:
        """Return the role of each server that runs, as the first that answers sees it."""
        for server in self.servers:
            with suppress(OSError, HTTPException):
                url = f"http://{server.address}:8008/cluster"
                with urllib.request.urlopen(url, timeout=2) as answer:
                    members = json.load(answer)["members"]
                alive = {"running", "streaming"}
                return {each["name"]: each["role"] for each in members if each["state"] in alive}
        return {}

    def _has_replicas(self) -> bool:
        """Return whether the leader has two replicas, one of them synchronous if it must be."""
        roles = sorted(self._roles().values())
        return roles == ["leader", "replica", "sync_standby" if self._synchronous else "replica"]

    def _answers(self, host: Host) -> bool:
        return self.ask(host) is not None

    def _has_brokers(self) -> bool:
        return all(self._accepts(server) for server in self.servers)

    def _broker_nodes(self) -> int:
        server = self.servers[0]
        program, environment = RABBITMQ_PROGRAMS / "rabbitmqctl", self._rabbitmq_environment(server)
        command = (str(program), "cluster_status", "--formatter", "json")
        server.start("rabbitmqctl", *command, environment=environment).wait(60)
        return len(json.loads(server.log("rabbitmqctl"))["running_nodes"])

    def _accepts(self, server: Host) -> bool:
        connection = amqp.Connection(f"{server.address}:5672", connect_timeout=2, read_timeout=5)
        try:
            connection.connect()
        except amqp.AMQPError:
            return False
        else:
            return True
        finally:
            connection.collect()

    # Their files

    def _write_files(self, host: Host) -> None:
        # A separate file system, which a fault can fill.
        disk = host.folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE},mode=777", "tmpfs", str(disk)]
        subprocess.run(mount, check=True)
        self._write_etcd(host)
        self._write_patroni(host)
        broker = host.folder / "rabbitmq"
        broker.mkdir()
        (broker / "plugins").write_text("[].\n")
        (broker / "env.conf").touch()
        cookie = broker / ".erlang.cookie"
        cookie.write_text("several-hosts")
        cookie.chmod(0o400)
        nodes = [
            f"cluster_formation.classic_config.nodes.{number} = rabbit@{server.address}\n"
            for number, server in enumerate(self.servers, 1)
        ]
        text = RABBITMQ.format(address=host.address) + "".join(nodes)
        (broker / "rabbitmq.conf").write_text(text)

    def _write_etcd(self, host: Host) -> None:
        members = ",".join(f"{each.name}=http://{each.address}:2380" for each in self.servers)
        settings = {
            "name": host.name,
            "data-dir": str(host.folder / "etcd"),
            "listen-peer-urls": f"http://{host.address}:2380",
            "initial-advertise-peer-urls": f"http://{host.address}:2380",
            "listen-client-urls": f"http://{host.address}:2379",
            "advertise-client-urls": f"http://{host.address}:2379",
            "initial-cluster": members,
            "initial-cluster-state": "new",
            "log-level": "warn",
            # Patroni speaks JSON to it.
            "enable-grpc-gateway": True,
        }
        # JSON is YAML.
        (host.folder / "etcd.yml").write_text(json.dumps(settings, indent=2))

    def _write_patroni(self, host: Host) -> None:
        binaries = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: each.parent.name)
        network = f"{host.address.rpartition('.')[0]}.0/24"
        settings = {
            "scope": "several-hosts",
            "name": host.name,
            "etcd3": {"hosts": [f"{server.address}:2379" for server in self.servers]},
            "restapi": {
                "listen": f"{host.address}:8008",
                "connect_address": f"{host.address}:8008",
            },
            "bootstrap": {
                "dcs": {
                    # Seconds. Another server takes over when the leader has not renewed its key for
                    # ttl. A leader that does not reach etcd for retry_timeout gives up its role.
                    "ttl": 20,
                    "loop_wait": 5,
                    "retry_timeout": 5,
                    "synchronous_mode": self._synchronous,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"max_connections": 200}},
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "data-checksums"],
                "pg_hba": [
                    f"host all all {network} scram-sha-256",
                    f"host replication all {network} scram-sha-256",
                ],
                # Patroni adds the address of the server.
                "post_bootstrap": f'{binaries}/psql -c "CREATE DATABASE {DATABASE}"',
            },
            "postgresql": {
                "listen": f"{host.address}:5432",
                "connect_address": f"{host.address}:5432",
                "data_dir": str(host.folder / "disk" / "postgresql"),
                "bin_dir": str(binaries),
                "pgpass": str(host.folder / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": PASSWORD},
                    "replication": {"username": "replicator", "password": PASSWORD},
                    "rewind": {"username": "rewinder", "password": PASSWORD},
                },
                # If pg_rewind cannot bring a former leader back, it becomes a new replica.
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
                "basebackup": [{"checkpoint": "fast"}],
                "parameters": {
                    "unix_socket_directories": str(host.folder),
                    # A server that was away still finds what it has missed on a new leader.
                    "wal_keep_size": "512MB",
                },
            },
        }
        (host.folder / "patroni.yml").write_text(json.dumps(settings, indent=2))

    def _prometheus_file(self) -> Path:
        rules = HERE.parent / "monitoring" / "rules.yml"
        beats = ", ".join(f'"{app.address}:9808"' for app in self.apps)
        file = self.ops.folder / "prometheus.yml"
        file.write_text(PROMETHEUS.format(rules=rules, beats=beats))
        return file
