"""Beat calls overridden methods, and each run that they handle gets a result."""

import functools
from datetime import UTC, datetime

import pytest
from celery import Celery
from celery.app.task import Task
from celery.signals import after_task_publish
from kombu.exceptions import OperationalError

from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.broker.task_message import is_overridden
from celery_dynbeat.planning.plan import OutgoingRun

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
FIRST, SECOND, THIRD = (f"019e0000-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))


class Stamping(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        headers = {**options.pop("headers", {}), "tenant": "blue"}
        return super().apply_async(args, kwargs, headers=headers, **options)


class Forgetful(Task):
    """Drops the headers and the producer."""

    def apply_async(self, args=None, kwargs=None, task_id=None, **_options):
        return super().apply_async(args, kwargs, task_id=task_id)


class Renaming(Task):
    def apply_async(self, args=None, kwargs=None, task_id=None, **options):
        return super().apply_async(args, kwargs, task_id=f"mine-{task_id}", **options)


class Silent(Task):
    def apply_async(self, *_args, **_options):
        return None


class Raising(Task):
    def apply_async(self, *_args, **_options):
        msg = "already queued"
        raise RuntimeError(msg)


class Stumbling(Task):
    """Publishes the run and then raises."""

    def apply_async(self, args=None, kwargs=None, **options):
        super().apply_async(args, kwargs, **options)
        msg = "no room in the log"
        raise RuntimeError(msg)


class Adding(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        return super().apply_async(args, {**(kwargs or {}), "added": object()}, **options)


class Regional(Task):
    def apply_async(self, args=None, kwargs=None, **options):
        return super().apply_async(args, {**(kwargs or {}), "region": "eu"}, **options)


def by_region(_name, _args, kwargs, _options, **_more):
    return {"priority": len(kwargs["region"])}


class Unreachable(Task):
    calls = 0

    def apply_async(self, *_args, **_options):
        Unreachable.calls += 1
        msg = "the other broker is away"
        raise OperationalError(msg)


class SendingApp(Celery):
    def send_task(self, name, *args, **options):
        return super().send_task(name, *args, **{**options, "priority": 6})


@pytest.fixture
def app():
    return new_app()


def test_a_task_with_celerys_methods_is_not_overridden(app):
    assert not is_overridden(app, task(app))
    assert not is_overridden(app, None)


def test_a_method_that_a_library_replaced_is_an_override(app, monkeypatch):
    original = Task.apply_async

    @functools.wraps(original)
    def traced(*args, **kwargs):
        return original(*args, **kwargs)

    monkeypatch.setattr(Task, "apply_async", traced)

    assert is_overridden(app, task(app))


def test_beat_calls_the_tasks_own_apply_async(app):
    task(app, base=Stamping)

    published = publish(app, run(FIRST))

    (message,) = messages(app)
    assert published.sent == [FIRST]
    assert message.headers["tenant"] == "blue"
    assert message.headers["dynbeat_run_id"] == message.headers["id"] == FIRST


def test_an_overridden_method_receives_the_retries_and_the_expiry_of_its_run(app):
    task(app, base=Stamping, expires=5)

    publish(app, run(FIRST, retries=2, attempt=3, expires_at=NOW.replace(hour=10)))

    (message,) = messages(app)
    assert (message.headers["retries"], message.headers["dynbeat_attempt"]) == (2, 3)
    assert message.headers["expires"] is None
    assert message.properties["expiration"] == "3600000"


@pytest.mark.parametrize("name", ["probe", "elsewhere"])
def test_beat_calls_the_send_task_of_an_application_class(name):
    app = new_app(SendingApp)
    task(app)

    assert publish(app, run(FIRST, task=name)).sent == [FIRST]
    assert messages(app)[0].properties["priority"] == 6


def test_beat_calls_the_send_task_of_an_application_instance(app):
    task(app)
    sends, names = app.send_task, []

    def send_task(name, *args, **options):
        names.append(name)
        return sends(name, *args, **options)

    app.send_task = send_task
    publish(app, run(FIRST))

    assert names == ["probe"]


def test_headers_that_an_override_drops_are_restored(app):
    task(app, base=Forgetful)

    published = publish(app, run(FIRST, options={"headers": {"tenant": "red"}}))

    (message,) = messages(app)
    assert published.sent == [FIRST]
    assert message.headers["dynbeat_run_id"] == FIRST
    assert "tenant" not in message.headers


def test_an_override_that_publishes_nothing_declines_the_run(app):
    task(app, base=Silent)

    published = publish(app, run(FIRST))

    assert published.sent == []
    assert published.declined == {
        FIRST: "the application's own apply_async or send_task published no message of 'probe'"
    }


def test_an_override_that_changes_the_id_declines_the_run_and_names_the_fix(app):
    task(app, base=Renaming)

    published = publish(app, run(FIRST))

    assert published.sent == []
    assert f"(mine-{FIRST})" in published.declined[FIRST]
    assert "pass task_id and **options on" in published.declined[FIRST]


def test_an_override_that_raises_delays_its_run_only(app):
    task(app, base=Raising)

    published = publish(app, run(FIRST), run(SECOND, task="elsewhere"))

    assert published.sent == [SECOND]
    assert list(published.delayed) == [FIRST]
    assert published.refused == {}


def test_a_run_is_unknown_when_its_method_publishes_and_then_raises(app):
    task(app, base=Stumbling)

    published = publish(app, run(FIRST))

    assert published.unknown == {FIRST}
    assert published.missing_from([run(FIRST)]) == []
    assert len(messages(app)) == 1


def test_an_unreachable_broker_of_an_override_is_tried_once_in_a_batch(app):
    task(app, base=Unreachable)

    published = publish(app, run(FIRST), run(SECOND, task="elsewhere"), run(THIRD))

    assert published.sent == [SECOND]
    assert set(published.delayed) == {FIRST, THIRD}
    assert Unreachable.calls == 1
    # The next batch tries the other runs first: each may use another broker.
    assert published.delayed[THIRD] < published.delayed[FIRST]


def test_arguments_that_the_task_rejects_are_the_fault_of_the_row(app):
    takes_one(app, base=Stamping)

    published = publish(app, run(FIRST, args=[1, 2]), run(SECOND, args=[1]))

    assert published.sent == [SECOND]
    assert "TypeError" in str(published.refused[FIRST])


def test_a_serializer_error_for_values_of_an_override_is_not_the_fault_of_the_row(app):
    task(app, base=Adding)

    published = publish(app, run(FIRST), run(SECOND, task="elsewhere", args=[object()]))

    assert list(published.delayed) == [FIRST]
    assert list(published.refused) == [SECOND]


def test_an_override_may_route_a_run_whose_router_raises(app):
    app.conf.task_routes = [by_region]
    task(app, base=Regional)
    publisher = Publisher(app, now=lambda: NOW)
    publisher.connect()

    # During an outage, beat calls the router for each run.
    first = publisher.publish([run(SECOND, task="elsewhere")])
    second = publisher.publish([run(FIRST)])

    assert (list(first.delayed), second.sent) == ([SECOND], [FIRST])
    assert publisher.outage_delay()(run(FIRST)) is None
    publisher.close()


def test_a_call_leaves_no_signal_receivers(app):
    task(app, base=Raising)
    before = list(after_task_publish.receivers)

    publish(app, run(FIRST))

    assert after_task_publish.receivers == before


def new_app(kind=Celery):
    app = kind(broker="memory://", set_as_current=False)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare("celery")
    return app


def task(app, **options):
    @app.task(name="probe", shared=False, **options)
    def probe(*_args, **_kwargs):
        pass

    app.finalize()
    return app.tasks["probe"]


def takes_one(app, **options):
    @app.task(name="probe", shared=False, **options)
    def probe(_only):
        pass

    app.finalize()


def run(run_id, **fields):
    given = {"task": "probe", "args": [], "kwargs": {}, "options": {}, **fields}
    return OutgoingRun(
        run_id=run_id,
        schedule_id=1,
        owner="user:42",
        name="digest",
        version=1,
        fire_at=NOW,
        **given,
    )


def publish(app, *runs):
    publisher = Publisher(app, now=lambda: NOW)
    try:
        publisher.connect()
        return publisher.publish(runs)
    finally:
        publisher.close()
        app.close()


def messages(app):
    found = []
    with app.connection_for_read() as connection:
        while message := connection.default_channel.basic_get("celery", no_ack=True):
            found.append(message)
    return found
