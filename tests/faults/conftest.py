"""Servers for faults, an installation that uses them, and the workload that is verified at the end.

A fault test takes ``fault_site`` and ``workload``. It runs on one combination of database and
broker, or with DYNBEAT_FAULTS=all on each. A test for one server names it:
``@pytest.mark.combination(broker="rabbitmq")``.
"""

from contextlib import ExitStack

import pytest

from celery_dynbeat.common.states import Status
from celery_dynbeat.db.models import Run
from tests.contract.conftest import beat, clock, mine  # noqa: F401 - fixtures
from tests.support import combinations, essential_faults
from tests.support.database_faults import faults_of
from tests.support.fault_servers import FaultServers, services
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.proxy import Proxy
from tests.support.sites import POOLS, site
from tests.support.waiting import wait_until
from tests.support.workload import Workload

#: Timeouts of minutes in production are seconds here.
QUICK = {
    "dynbeat_poll_interval": 1,
    "dynbeat_dispatch_timeout": 2,
    "dynbeat_resend_after": 5,
    "dynbeat_node_timeout": 3,
}
#: How long a worker defers a run while its database is unreachable; 10 s in production.
QUICK_CONSTANTS = {"celery_dynbeat.worker.task_guard.DEFER_SECONDS": 1}


def pytest_generate_tests(metafunc):
    if "combination" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("combination")
        wanted = combinations.select_combinations(**marker.kwargs if marker else {})
        metafunc.parametrize("combination", wanted, ids=str)


def pytest_collection_modifyitems(config, items):
    """Mark the slow tests as ``long``; deselect most of them with DYNBEAT_FAULTS=essential."""
    for item in filter(essential_faults.is_slow, items):
        item.add_marker(pytest.mark.long)
    deselected = essential_faults.nonessential(items)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in set(deselected)]


@pytest.fixture(scope="session")
def fault_servers():
    """Yield the servers of this process, which a test may kill, freeze and restart."""
    with ExitStack() as stack:
        yield FaultServers(stack)


@pytest.fixture
def fault_services(fault_servers, combination):
    """Yield a new database, an empty broker, and their running servers."""
    with services(fault_servers, combination) as given:
        yield given


@pytest.fixture
def database_server(fault_services):
    """Return the server of the database."""
    return fault_services.database_server


@pytest.fixture
def broker_server(fault_services):
    """Return the server of the broker."""
    return fault_services.broker_server


@pytest.fixture
def proxied():
    """Yield a function that starts a proxy: ``proxied(database_server).through(url)``."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Proxy(server.port))


@pytest.fixture
def fault_site(fault_services, tmp_path):
    """Yield an installation with short timeouts; ``config`` and ``constants`` may be changed."""
    folder = tmp_path / "site"
    folder.mkdir()
    urls = {
        "database_url": fault_services.database_url,
        "broker_url": fault_services.broker_url,
    }
    with site(folder, **urls, **QUICK) as created:
        created.constants.update(QUICK_CONSTANTS)
        yield created


@pytest.fixture
def workload(fault_site, combination, record_property):
    """Return the workload of ``fault_site``. Its summary line is printed at the end of the run."""
    return Workload(
        fault_site,
        label=str(combination),
        publish=lambda line: record_property(SUMMARY_PROPERTY, line),
    )


@pytest.fixture
def database_faults(fault_services):
    """Return the faults that an administrator can cause in the database of this test."""
    return faults_of(fault_services)


class Busy:
    """Two beats and a worker with running runs, messages in the queue, and future fire times."""

    def __init__(self, fault_site, workload, *, pool):
        self._gate = fault_site.gate("held")
        self.beats = [fault_site.beat() for _ in range(2)]
        self.worker = fault_site.worker(pool=pool)
        self.processes = [*self.beats, self.worker]
        for process in self.processes:
            process.wait_for_log("ready." if process is self.worker else "beat started")
        size = POOLS[pool]
        workload.create_one_offs(
            size, first_in=0.5, task="probe.hold", kwargs={"gate": str(self._gate)}
        )
        workload.wait_for_starts(size)
        workload.create_repeating(20, seconds=5, first_in=0.5)
        wait_until(lambda: fault_site.count_runs(Run.status == Status.SENT) >= 20, within=15)

    def open(self):
        """Let the running runs end, so that the worker takes the next messages."""
        self._gate.touch()

    def meet_the_fault(self):
        """Let the running runs end; return when beats, guard and recorder have met the fault."""
        self.open()
        for process in self.beats:
            process.wait_for_log("pass failed")
        self.worker.wait_for_log("buffered until the database is reachable")
        self.worker.wait_for_log("deferred by")

    def is_unharmed(self):
        return all(process.exit_status is None for process in self.processes)


@pytest.fixture
def busy(request, fault_site, workload):
    """Return an installation under load. Its worker has a pool of threads by default."""
    return Busy(fault_site, workload, pool=getattr(request, "param", "threads"))
