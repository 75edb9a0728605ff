"""Each run is one trace: beat's spans, the Celery instrumentation's, and those of the worker."""

import logging
from datetime import timedelta

import pytest
from celery.exceptions import Ignore, Reject
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import update

from celery_dynbeat import Dynbeat, Once
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.db.models import Run, Schedule
from celery_dynbeat.testing import ManualBeat
from celery_dynbeat.tracing.run_tracer import RunTracer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.empty_database


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.fixture(scope="session")
def celery_config():
    return {"broker_url": "memory://", "dynbeat_traces": True}


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
    """Return a function that returns the ended spans of this test by the start of their name."""
    exporter.clear()

    def ended():
        return {span.name.split()[0].split("/")[0]: span for span in exporter.get_finished_spans()}

    return ended


@pytest.fixture
def instrumented(exporter):  # noqa: ARG001 - comes first
    instrumentor = CeleryInstrumentor()
    instrumentor.instrument()
    yield
    instrumentor.uninstrument()


@pytest.fixture
def dynbeat(celery_app, sqlite_url):
    celery_app.conf.dynbeat_database_url = sqlite_url
    made = Dynbeat(celery_app)

    @celery_app.task(bind=True, name="traced", max_retries=1)
    def traced(self, ends="well"):
        if ends == "retries" and not self.request.retries:
            raise self.retry(countdown=0)
        if ends == "fails":
            raise KeyError(ends)
        if ends == "fails without a text":
            raise UnprintableError

    made.context.prepare()
    yield made
    made.context.database.dispose()


@pytest.fixture
def beat(dynbeat):
    context = dynbeat.context
    publisher = Publisher(dynbeat.app, now=context.clock.now, tracer=context.tracer)
    yield ManualBeat(dynbeat, publisher)
    publisher.close()


@pytest.fixture
def worker(request, dynbeat):  # noqa: ARG001 - comes first
    return request.getfixturevalue("in_process_worker")


@pytest.fixture
def run(dynbeat, beat):
    """Return a function that runs the task once, and returns the finished run."""

    def make(ends="well", status="succeeded"):
        mine = dynbeat.schedules.for_owner("user:1")
        mine.create(ends, task="traced", args=[ends], trigger=Once.after(timedelta(seconds=0.01)))

        def finished():
            beat.tick()
            return mine.runs(ends, status=status)

        (run,) = wait_until(finished, within=10)
        return run

    return make


@pytest.mark.usefixtures("worker", "instrumented")
def test_a_run_is_one_trace_from_the_claim_to_the_outcome(run, spans):
    with trace.get_tracer("test").start_as_current_span("pass of beat") as current:
        finished = run()
        wait_until(lambda: "run" in spans(), within=5)

    ended = spans()
    claim, publish, sent, guard, task, outcome = (
        ended[name] for name in ("claim", "publish", "apply_async", "guard", "run", "outcome")
    )
    steps = [claim, publish, sent, task, guard, outcome]
    assert len({span.context.trace_id for span in steps}) == 1
    assert claim.context.trace_id != current.get_span_context().trace_id
    parents = [span.parent and span.parent.span_id for span in steps]
    ids = [span.get_span_context().span_id for span in steps]
    assert parents == [None, ids[0], ids[1], ids[2], ids[3], ids[3]]
    assert claim.start_time < claim.end_time <= publish.start_time < publish.end_time
    assert publish.kind is SpanKind.PRODUCER
    assert (
        publish.attributes.items()
        >= {
            "messaging.system": "memory",
            "messaging.destination.name": "celery",
            "messaging.operation.type": "send",
            "messaging.message.id": finished.id,
            "dynbeat.owner": "user:1",
            "dynbeat.schedule": "well",
        }.items()
    )
    assert guard.attributes["dynbeat.decision"] == "start"
    assert outcome.attributes["dynbeat.status"] == "succeeded"


@pytest.mark.usefixtures("worker", "instrumented", "spans")
def test_two_runs_are_two_traces(dynbeat, beat, exporter):
    mine = dynbeat.schedules.for_owner("user:1")
    for name in ("a", "b"):
        mine.create(name, task="unknown", trigger=Once.after(timedelta(seconds=0.01)))

    def sent():
        beat.tick()
        return len([s for s in exporter.get_finished_spans() if s.name == "publish celery"]) == 2

    wait_until(sent, within=10)

    # The instrumentation leaves its span of an unregistered task current.
    claims = [s for s in exporter.get_finished_spans() if s.name == "claim unknown"]
    assert len({span.context.trace_id for span in claims}) == 2
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.usefixtures("worker")
def test_the_trace_needs_no_instrumentation_of_celery(run, spans):
    run()
    ended = wait_until(lambda: "outcome" in spans() and spans(), within=5)

    publish = ended["publish"]
    for name in ("guard", "outcome"):
        assert ended[name].parent.span_id == publish.context.span_id


@pytest.mark.usefixtures("worker", "instrumented")
def test_a_failure_shows_its_type_only(run, spans):
    run("fails", status="failed")
    outcome = wait_until(lambda: spans().get("outcome"), within=5)

    assert outcome.attributes["error.type"] == "KeyError"
    assert outcome.status.status_code is StatusCode.ERROR


@pytest.mark.usefixtures("worker")
def test_a_failure_whose_exception_has_no_text_is_recorded(run, spans):
    assert run("fails without a text", status="failed").error.startswith("UnprintableError: ")
    outcome = wait_until(lambda: spans().get("outcome"), within=5)

    assert outcome.attributes["error.type"] == "UnprintableError"


@pytest.mark.parametrize(
    ("error", "shown"),
    [(Ignore("a duplicate"), "a duplicate"), (Reject(OSError("x")), "Reject")],
    ids=["ignore", "reject"],
)
def test_the_guard_shows_the_texts_of_its_own_refusals_only(spans, error, shown):
    with pytest.raises(type(error)), RunTracer().deciding("t", "r"):
        raise error

    assert spans()["guard"].attributes["dynbeat.reason"] == shown


@pytest.mark.usefixtures("worker", "instrumented")
def test_a_retry_stays_in_the_trace(run, exporter):
    finished = run("retries")

    def outcomes():
        ended = [s for s in exporter.get_finished_spans() if s.name == "outcome traced"]
        # By status: a worker that an earlier test stopped in this process records them, too.
        mine = {
            span.attributes["dynbeat.status"]: span.context.trace_id
            for span in ended
            if span.attributes["dynbeat.run_id"] == finished.id
        }
        return len(mine) == 2 and mine

    traces = wait_until(outcomes, within=5)

    assert traces.keys() == {"retrying", "succeeded"}
    assert len(set(traces.values())) == 1


EVERY_HOUR = timedelta(hours=1)


@pytest.fixture
def edit(dynbeat):
    """Return a function that makes an edit in a span, and returns the span."""
    mine = dynbeat.schedules.for_owner("user:1")

    def make(call, *args, **given):
        with trace.get_tracer("application").start_as_current_span("request") as span:
            getattr(mine, call)(*args, **given)
        return span.get_span_context()

    return make


@pytest.fixture
def linked_by_run(dynbeat, beat, exporter, spans):  # noqa: ARG001 - clears the exporter
    """Return a function that sends a run, and returns the spans to which its trace is linked."""
    mine = dynbeat.schedules.for_owner("user:1")

    def send(name="report"):
        exporter.clear()
        mine.run_now(name)
        beat.tick()
        (root,) = [s for s in exporter.get_finished_spans() if s.parent is None]
        return [link.context for link in root.links]

    return send


def test_a_run_is_linked_to_the_edit_that_made_its_schedule(edit, linked_by_run):
    created = edit("create", "report", task="traced", trigger=EVERY_HOUR)
    (linked,) = linked_by_run()

    assert (linked.trace_id, linked.span_id) == (created.trace_id, created.span_id)


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("update", {"description": "changed"}),
        ("upsert", {"task": "traced", "trigger": timedelta(hours=2)}),
        ("pause", {}),
    ],
)
def test_the_link_names_the_last_edit(edit, linked_by_run, call, given):
    created = edit("create", "report", task="traced", trigger=EVERY_HOUR)
    edited = edit(call, "report", **given)

    assert [each.span_id for each in linked_by_run()] == [edited.span_id]
    assert created.span_id != edited.span_id


def test_an_edit_that_changes_nothing_keeps_the_link(edit, linked_by_run):
    created = edit("create", "report", task="traced", trigger=EVERY_HOUR)
    edit("update", "report", task="traced")

    assert [each.span_id for each in linked_by_run()] == [created.span_id]


def test_an_edit_without_a_span_removes_the_link(dynbeat, edit, linked_by_run):
    edit("create", "report", task="traced", trigger=EVERY_HOUR)
    dynbeat.schedules.for_owner("user:1").update("report", description="changed")

    assert linked_by_run() == []


def test_the_schedules_of_create_many_are_linked_to_it(dynbeat, linked_by_run):
    new = {"owner": "user:1", "task": "traced", "trigger": EVERY_HOUR}
    with trace.get_tracer("application").start_as_current_span("import") as span:
        dynbeat.schedules.create_many([{**new, "name": name} for name in ("a", "b")])

    for name in ("a", "b"):
        assert [each.span_id for each in linked_by_run(name)] == [span.get_span_context().span_id]


def test_a_claimed_run_is_linked_like_a_manual_one(beat, edit, spans):
    created = edit("create", "a", task="traced", trigger=Once.after(timedelta(seconds=0.01)))

    def claimed():
        beat.tick()
        return spans().get("claim")

    claim = wait_until(claimed, within=5)

    assert [link.context.span_id for link in claim.links] == [created.span_id]


@pytest.mark.parametrize(
    "stored",
    ["", "no context", "00-" + 32 * "0" + "-" + 16 * "0" + "-01", "ff-" + 32 * "a" + "-b-01"],
)
def test_a_malformed_trace_context_of_a_schedule_is_ignored(dynbeat, edit, linked_by_run, stored):
    edit("create", "report", task="traced", trigger=EVERY_HOUR)
    with dynbeat.context.database.engine.begin() as connection:
        connection.execute(update(Schedule).values(traceparent=stored))

    assert linked_by_run() == []


@pytest.fixture
def roots(dynbeat, beat, exporter, spans):  # noqa: ARG001 - clears the exporter
    """Return a function that makes a pass, and returns the ended spans of beat by their names."""

    def tick():
        exporter.clear()
        beat.tick()
        return {span.name.split()[0]: span for span in exporter.get_finished_spans()}

    return tick


@pytest.fixture
def set_run(dynbeat):
    def change(run_id, **values):
        with dynbeat.context.database.engine.begin() as connection:
            connection.execute(update(Run).where(Run.id == run_id).values(**values))

    return change


def test_a_resent_run_continues_its_trace(dynbeat, edit, roots, set_run):
    edit("create", "report", task="traced", trigger=EVERY_HOUR)
    made = dynbeat.schedules.for_owner("user:1").run_now("report")
    claim = roots()["claim"]
    # The broker has lost the message.
    set_run(made.id, overdue_at=made.scheduled_for)
    resent = roots()
    set_run(made.id, overdue_at=made.scheduled_for)
    again = roots()

    assert claim.parent is None
    for ended in (resent, again):
        assert ended["resend"].parent.span_id == claim.context.span_id
        assert ended["resend"].context.trace_id == claim.context.trace_id
        assert ended["publish"].parent.span_id == ended["resend"].context.span_id


@pytest.mark.parametrize("stored", [None, "", "no context"])
def test_without_a_readable_context_a_resent_run_starts_a_trace(
    dynbeat, edit, roots, set_run, stored
):
    edit("create", "report", task="traced", trigger=EVERY_HOUR)
    made = dynbeat.schedules.for_owner("user:1").run_now("report")
    roots()
    set_run(made.id, overdue_at=made.scheduled_for, traceparent=stored)

    assert roots()["resend"].parent is None


@pytest.mark.parametrize("many", [False, True])
def test_a_rerun_is_a_trace_that_is_linked_to_the_original(dynbeat, edit, roots, set_run, many):
    created = edit("create", "report", task="traced", trigger=EVERY_HOUR)
    mine = dynbeat.schedules.for_owner("user:1")
    made = mine.run_now("report")
    original = roots()["claim"]
    set_run(made.id, status="failed", finished_at=made.scheduled_for, overdue_at=None)
    if many:
        mine.rerun_many(since=made.scheduled_for - EVERY_HOUR)
    else:
        mine.rerun(made.id)

    rerun = wait_until(lambda: roots().get("claim"), within=5)

    assert rerun.parent is None
    assert rerun.context.trace_id != original.context.trace_id
    linked = {link.context.span_id for link in rerun.links}
    assert linked == {created.span_id, original.context.span_id}


@pytest.mark.usefixtures("worker")
def test_an_error_of_a_span_processor_affects_no_run(run, spans, monkeypatch):
    def raises(*_, **__):
        raise RuntimeError

    processor = vars(trace.get_tracer_provider())["_active_span_processor"]
    monkeypatch.setattr(processor, "on_start", raises)
    monkeypatch.setattr(processor, "on_end", raises)

    assert run().status == "succeeded"
    assert spans() == {}
