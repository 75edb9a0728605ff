"""With OpenTelemetry's instrumentation of Celery, each run is one trace."""

import logging
from datetime import timedelta

import pytest
from celery.signals import before_task_publish
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_dynbeat import Dynbeat, Once
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.testing import ManualBeat
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database
SOON = timedelta(seconds=0.01)


@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": "memory://"}


@pytest.fixture(scope="session")
def celery_worker_parameters():
    # The ping is a task, and its result needs a result backend.
    return {"perform_ping_check": False}


@pytest.fixture(autouse=True)
def log_level():
    """Restore the level of the root logger, which the worker in this process sets to ERROR."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def exporter():
    """Give the exporter of the process: OpenTelemetry accepts one provider per process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter):
    """Return a function that returns the ended spans of this test with the given name."""
    exporter.clear()
    instrumentor = CeleryInstrumentor()
    instrumentor.instrument()
    yield lambda name: [span for span in exporter.get_finished_spans() if span.name == name]
    instrumentor.uninstrument()


@pytest.fixture
def dynbeat(celery_app, sqlite_url):
    celery_app.conf.dynbeat_database_url = sqlite_url
    made = Dynbeat(celery_app)

    @celery_app.task(bind=True, name="traced", max_retries=1)
    def traced(self, *, retries=False):
        with trace.get_tracer("application").start_as_current_span("body"):
            pass
        if retries and not self.request.retries:
            raise self.retry(countdown=0)

    made.context.prepare()
    yield made
    made.context.database.dispose()


@pytest.fixture
def beat(dynbeat):
    publisher = Publisher(dynbeat.app, now=dynbeat.context.clock.now)
    yield ManualBeat(dynbeat, publisher)
    publisher.close()


@pytest.fixture
def run(dynbeat, beat, in_process_worker):  # noqa: ARG001 - executes the task
    """Return a function that runs the task once, and returns the finished run."""

    def make(**kwargs):
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create("n", task="traced", kwargs=kwargs, trigger=Once.after(SOON))

        def finished():
            beat.tick()
            return mine.runs("n", status="succeeded")

        (run,) = wait_until(finished, within=10)
        return run

    return make


def test_a_run_is_one_trace_from_the_publish_to_the_body(run, spans):
    with trace.get_tracer("test").start_as_current_span("pass of beat"):
        finished = run()
    (executed,) = wait_until(lambda: spans("run/traced"), within=5)
    (sent,), (body,) = spans("apply_async/traced"), spans("body")

    assert sent.context.trace_id == executed.context.trace_id == body.context.trace_id
    assert executed.parent.span_id == sent.context.span_id
    assert body.parent.span_id == executed.context.span_id
    assert sent.attributes["messaging.message.id"] == finished.id


def test_a_retry_of_celery_stays_in_the_trace(run, spans):
    run(retries=True)
    executed = wait_until(lambda: len(spans("run/traced")) == 2 and spans("run/traced"), within=5)

    assert len({span.context.trace_id for span in executed}) == 1


@pytest.mark.usefixtures("spans")
def test_two_runs_of_a_task_that_beat_has_not_registered_are_two_traces(dynbeat, beat):
    mine = dynbeat.schedules.for_owner("user:1")
    contexts = []

    def sent():
        beat.tick()
        return len(contexts) == 2

    def receive(headers, **_):
        contexts.append(headers["traceparent"].split("-")[1])

    # After the instrumentation, which writes the header.
    before_task_publish.connect(receive)
    for name in ("a", "b"):
        mine.create(name, task="unknown", trigger=Once.after(SOON))
    wait_until(sent, within=10)
    before_task_publish.disconnect(receive)

    assert len(set(contexts)) == 2
    assert not trace.get_current_span().get_span_context().is_valid
