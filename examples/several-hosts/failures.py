"""Start the cluster, let each part of it fail in turn, and account for every fire time.

    PATRONI=/opt/patroni/bin/patroni .venv/bin/python examples/several-hosts/failures.py
    ... failures.py --only leader --times 20                              some faults, 20 in all
    ... failures.py --random --minutes 60                                 all of them at random
    ... failures.py --list                                                their names

README.md says what it needs, and how to install Patroni. The exit status is 0
if each fault ended and no fire time was lost or doubled.
"""

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import hosts
from account import INTERVAL, OWNERS, Account, Client, Starts, make_account, pulse_names
from cluster import HEARTBEAT_AGE, PATRONI, Cluster, ClusterError, wait_until
from hosts import Host

#: Seconds that a fault lasts, longer than Patroni's ttl of 20 s.
LASTS = 40
#: A start within this many seconds of its fire time is normal.
NORMAL = 2.0
MEGABYTE = bytes(2**20)
#: Also the backends: "postgres: several-hosts: walsender ...".
POSTGRES = "postgres"
DATABASE_PORT, BROKER_PORT = 5432, 5672
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"

COLUMNS = (
    "fault (seconds)",
    "no dispatch for",
    "no start for",
    "latest start",
    "late starts until",
    "requests refused",
)

Fault = Callable[[Cluster], None]


def _fail(hold: float = LASTS) -> Callable[[Callable[[Cluster], Iterator[None]]], Fault]:
    """Make a fault of a function that causes it, yields, and ends it."""

    def decorate(function: Callable[[Cluster], Iterator[None]]) -> Fault:
        def fault(cluster: Cluster) -> None:
            with contextmanager(function)(cluster):
                time.sleep(hold)

        return fault

    return decorate


def _leader(cluster: Cluster) -> Host:
    leader = cluster.leader()
    if leader is None:
        raise ClusterError("PostgreSQL has no leader before the fault")
    return leader


@_fail(hold=1)
def kill_postgres(cluster: Cluster) -> Iterator[None]:
    """Kill PostgreSQL of the leader; Patroni is alive."""
    _leader(cluster).kill(matching=POSTGRES)
    yield


@_fail()
def kill_leader_host(cluster: Cluster) -> Iterator[None]:
    """Kill all programs of the leader's host; they start again after LASTS."""
    _leader(cluster).kill()
    yield


@_fail()
def freeze_leader(cluster: Cluster) -> Iterator[None]:
    """Suspend Patroni and PostgreSQL of the leader. Then both continue."""
    leader = _leader(cluster)
    with leader.frozen(matching=PATRONI), leader.frozen(matching=POSTGRES):
        yield


@_fail()
def cut_off_leader(cluster: Cluster) -> Iterator[None]:
    """Cut the leader's host off from all others."""
    with _leader(cluster).cut_off():
        yield


@_fail(hold=5)
def switch_over(cluster: Cluster) -> Iterator[None]:
    """Move the leader by hand."""
    cluster.switch_over()
    yield


@_fail()
def kill_replica_host(cluster: Cluster) -> Iterator[None]:
    """Kill all programs of a replica's host."""
    cluster.replica().kill()
    yield


@_fail(hold=30)
def freeze_two_etcd(cluster: Cluster) -> Iterator[None]:
    """Freeze two of three etcd members: Patroni demotes the leader, and there is no primary."""
    with ExitStack() as stack:
        for server in cluster.servers[:2]:
            stack.enter_context(server.frozen(matching="etcd "))
        yield


@_fail(hold=60)
def fill_disk(cluster: Cluster) -> Iterator[None]:
    """Fill the disk of the leader's database for a minute."""
    ballast = _leader(cluster).folder / "disk" / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(MEGABYTE)
    try:
        yield
    finally:
        ballast.unlink()


def _kill_broker(cluster: Cluster, *, number: int) -> None:
    cluster.servers[number].kill(matching="rabbit")
    time.sleep(LASTS)


@_fail()
def cut_off_replica_host(cluster: Cluster) -> Iterator[None]:
    """Cut off a host with a broker and a replica of the database."""
    with cluster.replica().cut_off():
        yield


@_fail(hold=1)
def kill_beat(cluster: Cluster) -> Iterator[None]:
    """Kill one of the two beats."""
    cluster.apps[0].kill(matching=" beat ")
    yield


@_fail(hold=1)
def kill_worker(cluster: Cluster) -> Iterator[None]:
    """Kill one of the two workers, with its pool."""
    cluster.apps[0].kill(matching="worker@")
    yield


@_fail(hold=5)
def kill_api(cluster: Cluster) -> Iterator[None]:
    """Kill one of the two API servers."""
    cluster.apps[0].kill(matching="uvicorn")
    yield


@_fail()
def kill_app_host(cluster: Cluster) -> Iterator[None]:
    """Kill a beat, a worker and an API server."""
    cluster.apps[0].kill()
    yield


@_fail()
def cut_off_app_host(cluster: Cluster) -> Iterator[None]:
    """Cut off a host with a beat, a worker and an API server."""
    with cluster.apps[0].cut_off():
        yield


def _without_answers(cluster: Cluster, *, port: int) -> None:
    with ExitStack() as stack:
        for server in cluster.servers:
            stack.enter_context(server.silent(port, to=cluster.apps[0]))
        time.sleep(LASTS)


FAULTS: dict[str, Fault] = {
    "leader: PostgreSQL killed": kill_postgres,
    "leader: its host dies": kill_leader_host,
    "leader: frozen": freeze_leader,
    "leader: its host cut off": cut_off_leader,
    "leader: switched over by hand": switch_over,
    "replica: its host dies": kill_replica_host,
    "replica: its host cut off": cut_off_replica_host,
    "etcd: two of three frozen": freeze_two_etcd,
    "disk of the database full": fill_disk,
    **{
        f"RabbitMQ: node {number + 1} killed": partial(_kill_broker, number=number)
        for number in range(3)
    },
    "app1: beat killed": kill_beat,
    "app1: worker killed": kill_worker,
    "app1: API server killed": kill_api,
    "app1: host dies": kill_app_host,
    "app1: host cut off": cut_off_app_host,
    "app1: no answer of the databases": partial(_without_answers, port=DATABASE_PORT),
    "app1: no answer of the brokers": partial(_without_answers, port=BROKER_PORT),
}


@dataclass
class Observed:
    """What happened in the period of one fault, in seconds from its beginning."""

    fault: str
    #: The longest time in which no beat sent a run.
    dispatch: float
    #: The longest time in which no worker started one.
    pause: float
    #: The longest delay of a start after its fire time.
    late: float
    #: Until the last start that was late.
    recovered: float
    refused: int

    def __str__(self) -> str:
        seconds = (self.dispatch, self.pause, self.late, self.recovered)
        return f"| {self.fault} | {' | '.join(f'{x:.0f}' for x in seconds)} | {self.refused} |"


def observe(name: str, cluster: Cluster, starts: Starts, client: Client, rate: int) -> Observed:
    """Cause a fault, start what it ended, and wait until all is normal again."""
    begin, refused = time.monotonic(), client.refused
    began_at = datetime.now(UTC)
    FAULTS[name](cluster)
    for host in (*cluster.servers, *cluster.apps):
        cluster.boot(host)
    # The heartbeats of programs that were killed are old after this.
    time.sleep(HEARTBEAT_AGE)
    wait_until(cluster.is_whole, within=180, what=f"the cluster is whole again after: {name}")
    wait_until(lambda: _is_normal(starts, rate), within=240, what=f"starts in time after: {name}")
    end = time.monotonic()
    seen = starts.between(begin, end)
    times = [begin, *(start.seen for start in seen), end]
    late = [start for start in seen if start.late > NORMAL]
    return Observed(
        fault=name,
        dispatch=cluster.longest_gap(began_at, datetime.now(UTC)),
        pause=max(after - before for before, after in itertools.pairwise(times)),
        late=max((start.late for start in seen), default=0.0),
        recovered=max((start.seen for start in late), default=begin) - begin,
        refused=client.refused - refused,
    )


def _is_normal(starts: Starts, rate: int) -> bool:
    """Return whether the starts of the last 5 seconds were in time, and about as many as due."""
    now = time.monotonic()
    recent = starts.between(now - 5, now)
    return len(recent) > 4 * rate and max(start.late for start in recent) < NORMAL


def choose(options: argparse.Namespace) -> Iterator[str]:
    """Yield the names of the faults to cause."""
    names = _names(options)
    if options.random:
        numbers = random.Random(options.seed)  # noqa: S311 - no secret
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            yield numbers.choice(names)
    else:
        yield from itertools.islice(itertools.cycle(names), options.times or len(names))


def _names(options: argparse.Namespace) -> list[str]:
    return [name for name in FAULTS if name.startswith(tuple(options.only.split("|")))]


def _cause_all(
    options: argparse.Namespace, cluster: Cluster, starts: Starts, client: Client
) -> None:
    """Cause the faults, and print a row of the table for each."""
    wait_until(lambda: _is_normal(starts, options.rate), within=60, what="starts in time")
    print(f"{options.rate} fire times a second", flush=True)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    for name in choose(options):
        print(observe(name, cluster, starts, client, options.rate), flush=True)


def run(options: argparse.Namespace, cluster: Cluster) -> Account:
    """Run the faults on a new cluster, and return the account."""
    if options.clocks:
        cluster.set_clocks(FAKETIME)
    print("starting the cluster", flush=True)
    cluster.start()
    os.environ.update(cluster.environment)
    # Here, because the configuration is in the environment.
    from app import dynbeat  # noqa: PLC0415

    from celery_dynbeat import Every  # noqa: PLC0415

    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    names = pulse_names(options.rate)
    # A quarter of them at each quarter of a second.
    first = {name: begin + INTERVAL * (n % 4 / 4) for n, name in enumerate(names)}
    dynbeat.schedules.create_many(
        [
            {
                "owner": f"user:{number % OWNERS}",
                "name": name,
                "task": "remind",
                "trigger": Every(INTERVAL),
                "start_at": first[name],
            }
            for number, name in enumerate(names)
        ]
    )
    starts = Starts(cluster.starts)
    client = Client(cluster.apps, cluster.ask)
    try:
        _cause_all(options, cluster, starts, client)
    except ClusterError as error:
        # The account of the faults until then, and the logs, show what happened.
        print(f"\nended early: {error}")
        options.ended_early = True
    finally:
        client.stop()
    paused_at = {}
    for number, name in enumerate(names):
        dynbeat.schedules.for_owner(f"user:{number % OWNERS}").pause(name)
        paused_at[name] = datetime.now(UTC)
    unfinished = "SELECT 1 FROM dynbeat_run WHERE finished_at IS NULL LIMIT 1"
    # The reminders that are still in the future, and messages that have to be sent again.
    time.sleep(20)
    wait_until(lambda: not cluster.sql(unfinished), within=300, what="no unfinished run")
    time.sleep(2)
    ended = "SELECT status, count(*) FROM dynbeat_run GROUP BY 1 ORDER BY 2 DESC"
    print(f"\nruns in the history: {cluster.sql(ended)}")
    alerts = cluster.fired_alerts()
    shown = "not known" if alerts is None else ", ".join(alerts) or "none"
    print(f"alerts that have fired: {shown}")
    print(cluster.command("dynbeat", "status"))
    return make_account(starts, first=first, paused_at=paused_at, client=client)


def main() -> int:
    """Run the faults, print the account, and return the exit status."""
    options = _parse()
    if options.list:
        print(*FAULTS, sep="\n")
        return 0
    hosts.enter_new_network()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as stack:
        if options.keep:
            folder = options.keep
            folder.mkdir(parents=True)
        else:
            temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
        folder.chmod(0o777)
        cluster = Cluster(folder, synchronous=not options.asynchronous)
        stack.callback(cluster.stop)
        account = run(options, cluster)
    print(
        f"fire times: {account.expected}, lost {len(account.lost)}, doubled {len(account.doubled)},"
        f" unexpected {len(account.unexpected)}; further attempts {account.further_attempts}\n"
        f"reminders: {account.confirmed} confirmed, lost {len(account.lost_reminders)};"
        f" {account.cancelled} cancelled, started nevertheless {len(account.not_cancelled)}"
    )
    if not account.is_good:
        print(account)
    return 0 if account.is_good and not options.ended_early else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--only", default="", help="faults whose names begin with one of these texts, split by |")
    add("--times", type=int, help="how many faults in all")
    add("--random", action="store_true", help="in a random order")
    add("--minutes", type=float, default=60, help="with --random")
    add("--seed", type=int, default=1)
    add("--rate", type=int, default=200, help="fire times a second")
    add("--asynchronous", action="store_true", help="without synchronous_mode of Patroni")
    add("--clocks", action="store_true", help="server2 is 2 s ahead, app2 is 5 minutes behind")
    add("--list", action="store_true", help="print the names of the faults")
    add("--keep", type=lambda given: Path(given).resolve(), help="keep the logs in this new folder")
    parser.set_defaults(ended_early=False)
    options = parser.parse_args()
    if not _names(options):
        parser.error(f"--only {options.only!r}: no fault begins like this; see --list")
    if options.clocks and not Path(FAKETIME).exists():
        parser.error(f"--clocks needs {FAKETIME}: install libfaketime")
    if options.keep and options.keep.exists():
        parser.error(f"--keep {options.keep}: the folder exists")
    return options


if __name__ == "__main__":
    sys.exit(main())
