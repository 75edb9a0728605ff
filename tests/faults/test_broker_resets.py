"""The connection to the broker is reset while beat publishes a batch."""

from collections import Counter

import pytest

from tests.support.failpoints import GATE_VARIABLE, HOLD_VARIABLE, HOLDING, held_marker
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

BATCH = 100
#: In bytes. A message has more than 500, so only a part of the batch arrives.
PART_OF_A_BATCH = 20_000


class CuttingProxy(Proxy):
    """A proxy that passes ``allowance`` bytes to the server and then resets the client, once."""

    allowance: int | None = None

    async def _pump(self, reader, target, source):
        inbound = source.get_extra_info("sockname")[1] == self.port
        await super()._pump(
            reader, CountingWriter(self, target, source) if inbound else target, source
        )

    def cut(self, source):
        self.allowance = None
        self._reset(source)


class CountingWriter:
    """Counts the bytes that it writes to the server."""

    def __init__(self, proxy, target, source):
        self._proxy, self._target, self._source = proxy, target, source
        self._cut = False

    def write(self, chunk):
        allowance = self._proxy.allowance
        if self._cut:
            # The server must receive a prefix of the stream.
            return
        if allowance is None:
            self._target.write(chunk)
            return
        self._target.write(chunk[:allowance])
        self._proxy.allowance = allowance - len(chunk)
        if self._proxy.allowance <= 0:
            self._cut = True
            self._proxy.cut(self._source)

    async def drain(self):
        await self._target.drain()


@pytest.fixture
def cutting(fault_site, fault_services):
    """Yield the proxy between beat and its broker. The worker connects directly."""
    fault_site.worker(pool="threads").wait_for_log("ready.")
    with CuttingProxy(fault_services.broker_server.port) as proxy:
        fault_site.config["broker_url"] = proxy.through(fault_services.broker_url)
        yield proxy


def hold_with_a_batch(fault_site, workload):
    """Start a beat and hold it between the commit and the publish of a batch."""
    gate = fault_site.gate("pass")
    holding = {HOLD_VARIABLE: "committed", GATE_VARIABLE: str(gate)}
    # All are due at the same instant, so they form one batch.
    workload.create_one_offs(BATCH, first_in=1)
    beat = fault_site.beat(scheduler=HOLDING, **holding)
    wait_until(held_marker(gate).exists, within=30)
    return beat, gate


def cut_in_a_batch(fault_site, workload, cutting):
    beat, gate = hold_with_a_batch(fault_site, workload)
    with workload.fault():
        cutting.allowance = PART_OF_A_BATCH
        gate.touch()
        beat.wait_for_log("pass failed")
    arrived = {start["run_id"] for start in fault_site.event_log.starts()}
    assert len(arrived) < BATCH

    workload.verify(f"connection cut {PART_OF_A_BATCH} bytes into a batch of {BATCH}")
    published = Counter(entry["run_id"] for entry in fault_site.event_log.read("before_publish"))
    assert max(published.values()) == 2
    assert beat.exit_status is None


def reset_before_the_batch(fault_site, workload, cutting):
    beat, gate = hold_with_a_batch(fault_site, workload)
    with workload.fault():
        cutting.reset_all()
        gate.touch()

    workload.verify(f"connection reset between commit and publish of a batch of {BATCH}")
    assert beat.exit_status is None


@pytest.mark.combination(broker="redis")
@pytest.mark.parametrize("fault", [cut_in_a_batch, reset_before_the_batch])
def test_a_reset_connection_to_redis_loses_no_run(fault_site, workload, cutting, fault):
    fault(fault_site, workload, cutting)


@pytest.mark.combination(broker="rabbitmq")
@pytest.mark.parametrize("fault", [cut_in_a_batch, reset_before_the_batch])
def test_a_reset_connection_to_rabbitmq_loses_no_run(fault_site, workload, cutting, fault):
    fault(fault_site, workload, cutting)
