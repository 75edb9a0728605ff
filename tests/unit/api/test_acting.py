"""The actor of the edits in a block."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_dynbeat.api.audit import Acting, acting, current_actor


def test_without_a_block_there_is_no_actor():
    assert current_actor() == Acting("", "")


def test_the_inner_block_replaces_actor_and_reason_until_its_end():
    with acting(actor="alice", reason="ticket 12"):
        with acting(actor="bob"):
            assert current_actor() == Acting("bob", "")
        assert current_actor() == Acting("alice", "ticket 12")
    assert current_actor() == Acting("", "")


def test_an_error_ends_the_block():
    with pytest.raises(ZeroDivisionError), acting(actor="alice"):
        _ = 1 / 0
    assert current_actor() == Acting("", "")


def test_a_new_thread_has_no_actor():
    with acting(actor="alice"), ThreadPoolExecutor(1) as threads:
        assert threads.submit(current_actor).result() == Acting("", "")


def test_concurrent_tasks_have_their_own_actors():
    async def act(name, started, other_started):
        with acting(actor=name):
            started.set()
            await other_started.wait()
            in_thread = await asyncio.to_thread(current_actor)
            return current_actor().actor, in_thread.actor

    async def both():
        first, second = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(act("alice", first, second), act("bob", second, first))

    assert asyncio.run(both()) == [("alice", "alice"), ("bob", "bob")]


def test_a_block_can_end_in_another_context():
    block = acting(actor="alice")
    contextvars.copy_context().run(block.__enter__)
    block.__exit__(None, None, None)
    assert current_actor() == Acting("", "")


def test_it_decorates_a_function():
    decorated = acting(actor="alice")(current_actor)
    assert decorated() == Acting("alice", "")
