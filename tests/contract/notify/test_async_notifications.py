"""The notifications of a change in an event loop."""

import asyncio
import logging
import threading

from kombu import pools

from celery_dynbeat import Every
from celery_dynbeat.notify import BrokerNotifier
from tests.support.applications import async_application
from tests.support.servers.machine import free_port
from tests.support.waiting import wait_until


async def create_due(dynbeat):
    """Create a schedule that is due within the poll interval of beat, so that beat must wake."""
    mine = dynbeat.schedules.for_owner("u")
    await mine.create("n", task="t", trigger=Every(1))


def test_the_broker_notifies_beat_of_a_change(sqlite_url, redis_url):
    wakes = threading.Semaphore(0)

    async def main():
        async with async_application(sqlite_url) as dynbeat:
            dynbeat.app.conf.update(broker_url=redis_url, dynbeat_notifier="broker")
            listener = BrokerNotifier(dynbeat.app).listener(wakes.release)
            listener.start()
            # The first call is for changes before the listener.
            assert await asyncio.to_thread(wakes.acquire, timeout=10)
            await create_due(dynbeat)
            assert await asyncio.to_thread(wakes.acquire, timeout=10)
            await asyncio.to_thread(listener.stop)
            # Not only this pool: kombu would give the closed one to the next test with this URL.
            pools.reset()

    asyncio.run(main())


def test_the_event_loop_does_not_wait_for_the_broker(sqlite_url, caplog):
    async def main():
        async with async_application(sqlite_url) as dynbeat:
            dynbeat.app.conf.update(
                broker_url=f"redis://127.0.0.1:{free_port()}", dynbeat_notifier="broker"
            )
            await create_due(dynbeat)

    asyncio.run(main())

    def failures():
        return [each for each in caplog.records if getattr(each, "event", "") == "notify_failed"]

    wait_until(failures, within=10)
    (failure,) = failures()
    assert failure.levelno == logging.WARNING
    assert failure.threadName != threading.main_thread().name
