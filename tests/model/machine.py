"""All histories of one schedule with its fire times, two beats, two workers and a broker.

``World`` is the state at an instant. ``Machine.moves`` yields all that can happen next: the actions
of each process, faults, and calls of users. Time is a separate move, so a history can contain any
delay. Rows change only by ``steps``: by the real functions on a real database. This module models
the rest: where each message is, and when a process dies.

A move of ``progress`` happens sooner or later as long as processes run. All other moves are faults
and calls of users, and each of them uses up a budget.
"""

from collections.abc import Iterator
from typing import NamedTuple

from celery_dynbeat.common.states import Status
from celery_dynbeat.worker.start_decision import StartAction
from tests.model.steps import WORKERS, Message, Plan, Row, Steps


class Job(NamedTuple):
    """An attempt that a worker executes, or whose outcome is not written.

    ``state`` is running, retried (Celery has sent the message of the next attempt, the outcome is
    not written), buffered (the attempt has ended, the outcome is in the buffer), failed (the same
    for a failure after which beat sends the run again) or handed over (the pool process has ended,
    the outcome is in the buffer of the main process). ``doubted``: the
    worker was silent for the node timeout since the attempt started.
    """

    message: Message
    attempt: int
    state: str = "running"
    doubted: bool = False


class Worker(NamedTuple):
    """A worker; ``has_heartbeat`` is False when its node was silent for the node timeout.

    ``unknown_start`` is an attempt of a fire time whose row may be running while no process
    executes it. ``stored`` is an attempt whose process died after its result was stored.
    """

    alive: bool = True
    has_heartbeat: bool = True
    job: Job | None = None
    unknown_start: tuple[int, int] | None = None
    stored: tuple[int, int] | None = None


class Beat(NamedTuple):
    """A beat between two steps: the messages to publish, and those to confirm.

    ``published`` holds the fire time of each message and the attempt that it follows.
    """

    outbox: tuple[Message, ...] = ()
    published: tuple[tuple[int, int], ...] = ()

    @property
    def idle(self) -> bool:
        return not self.outbox and not self.published


class World(NamedTuple):
    """The state of the model. ``excuses`` counts the starts that each fire time may still have."""

    time: int
    plan: Plan
    rows: tuple[Row | None, ...]
    queue: tuple[Message, ...]
    beats: tuple[Beat, ...]
    workers: tuple[Worker, ...]
    faults: int
    retries: int
    edits: int
    excuses: tuple[int, ...]


class Move(NamedTuple):
    """What happens, whether it is progress, and the world after it."""

    name: str
    progress: bool
    world: World


class BrokenPromiseError(AssertionError):
    """A forbidden start. The explorer adds the history that led to it."""


ROWS, QUEUE, BEATS, WORKER_STATES = map(World._fields.index, ("rows", "queue", "beats", "workers"))


def _with(items: tuple, index: int, item: object) -> tuple:
    return (*items[:index], item, *items[index + 1 :])


def _changed(world: World, field: int, value: object) -> World:
    # A third of the time of _replace(), which an exploration would call four million times.
    return World._make(_with(world, field, value))


class Machine:
    """The moves of a world; ``late``: messages are acknowledged at the end of the task.

    Otherwise the main process acknowledges them after their pool process may have started them. So
    the broker redelivers the message of a started run in both cases.

    ``policy``: the schedule has a retry policy. Its retries and Celery's use up the same budget.
    """

    def __init__(self, steps: Steps, *, fires: int, late: bool, policy: bool = False) -> None:
        self.steps, self.fires, self.late, self.policy = steps, fires, late, policy
        #: A run may start again if its worker or its pool process dies, or is silent.
        self.may_rerun = late or steps.on_lost == "rerun"

    def first(self, *, faults: int, retries: int, edits: int) -> World:
        """Return the world before the first fire time."""
        nothing = (None,) * self.fires
        return World(
            0,
            Plan(next_fire=2 - self.fires),
            nothing,
            (),
            (Beat(), Beat()),
            (Worker(), Worker()),
            faults,
            retries,
            edits,
            (1,) * self.fires,
        )

    def moves(self, world: World) -> Iterator[Move]:
        """Yield all that can happen next."""
        if world.time < self.fires:
            yield Move("time passes", True, world._replace(time=world.time + 1))
        for index, beat in enumerate(world.beats):
            if beat.idle:
                yield from self._idle_beat(world, index)
            else:
                yield from self._busy_beat(world, index, beat)
        if world.faults:
            yield from self._broker(world)
        for fire, row in self._rows(world):
            if row.fresh:
                yield Move(f"{fire} is not fresh", True, self._aged(world, fire, row))
        for index, worker in enumerate(world.workers):
            yield from self._worker(world, index, worker)
        yield from self._users(world)

    # Beats

    def _idle_beat(self, world: World, index: int) -> Iterator[Move]:
        yield from self._claim(world, index)
        for fire, row in self._rows(world):
            if row.overdue:
                after, message = self.steps.sweep(world.plan, row)
                swept = self._row(world, fire, after)
                if message is None:
                    yield Move(f"sweep {fire}", True, swept)
                    continue
                beat = Beat((message._replace(fire=fire),))
                yield Move(f"sweep {fire}", True, self._beat(swept, index, beat))
                yield from self._fault("beat dies after its sweep", swept)
            if row.status == Status.RUNNING:
                after = self.steps.lose(world.plan, row, self._heartbeats(world))
                if after != row:
                    yield Move(f"rescue {fire}", True, self._row(world, fire, after))
            if row.status == Status.RETRYING:
                after = self.steps.resend_retry(world.plan, row)
                if after != row:
                    yield Move(f"resend the retry of {fire}", True, self._row(world, fire, after))

    def _claim(self, world: World, index: int) -> Iterator[Move]:
        shift = 2 - self.fires
        if world.plan.life != "enabled" or world.plan.next_fire >= world.time + shift:
            return
        recorded = (*(False,) * shift, *(row is not None for row in world.rows))
        plan, fires = self.steps.claim(world.plan, recorded, world.time + shift)
        rows, messages = world.rows, []
        for fire in fires:
            rows = _with(rows, fire - shift, Row(Status.PENDING, overdue=True))
            messages.append(Message(fire - shift, 0, 0))
        claimed = world._replace(plan=plan, rows=rows)
        # Messages that it published before may still wait for their confirm.
        beat = Beat(tuple(messages), world.beats[index].published)
        yield Move("claim", True, self._beat(claimed, index, beat))
        # Beat dies, or the reply to its commit is lost.
        yield from self._fault("beat does not see its commit", claimed)

    def _busy_beat(self, world: World, index: int, beat: Beat) -> Iterator[Move]:
        if beat.outbox:
            message, *rest = beat.outbox
            published = Beat(
                tuple(rest), (*beat.published, (message.fire, message.expected_attempt))
            )
            sent = self._queue(world, message)
            yield Move(f"publish {message.fire}", True, self._beat(sent, index, published))
        else:
            yield from self._claim(world, index)
        if beat.published:
            yield Move("confirm", True, self._confirmed(world, index, beat))
        if not world.faults:
            return
        if beat.published:
            yield from self._fault("confirm fails", self._beat(world, index, Beat(beat.outbox)))
        yield from self._fault("beat dies", self._beat(world, index, Beat()))

    def _confirmed(self, world: World, index: int, beat: Beat) -> World:
        for fire, attempt in beat.published:
            row = world.rows[fire]
            if row is not None:
                world = self._row(world, fire, self.steps.confirm(world.plan, row, attempt))
        return self._beat(world, index, Beat(beat.outbox))

    # The broker

    def _broker(self, world: World) -> Iterator[Move]:
        for message in set(world.queue):
            taken = self._taken(world, message)
            yield from self._fault(f"broker loses {message}", taken)
            if not self.late and not message.redelivered:
                # A lost connection marks all messages that a worker has prefetched.
                again = self._queue(taken, message._replace(redelivered=True))
                yield from self._fault(f"broker redelivers {message}", again)
        for worker in world.workers:
            if worker.job is not None:
                again = self._queue(world, worker.job.message._replace(redelivered=True))
                yield from self._fault("broker redelivers", again)

    # Workers

    def _worker(self, world: World, index: int, worker: Worker) -> Iterator[Move]:
        if worker.alive and not worker.has_heartbeat:
            has_heartbeat = worker._replace(has_heartbeat=True)
            yield Move(f"w{index} writes a heartbeat", True, self._set(world, index, has_heartbeat))
        if worker.unknown_start is not None:
            yield Move(
                f"w{index} undoes the start of {worker.unknown_start}",
                True,
                self._undone(world, index),
            )
        if worker.alive:
            yield from self._check_pool(world, index, worker)
        if not worker.alive:
            yield from self._dead(world, index, worker)
        elif worker.job is None:
            for message in set(world.queue):
                yield from self._receive(world, index, message)
        else:
            yield from self._job(world, index, worker, worker.job)
        if worker.alive and world.faults:
            yield from self._worker_faults(world, index, worker)

    def _dead(self, world: World, index: int, worker: Worker) -> Iterator[Move]:
        if worker.has_heartbeat:
            silent = worker._replace(has_heartbeat=False)
            yield Move(f"w{index} is silent", True, self._set(world, index, silent))
        rows = tuple(
            row._replace(replaced=True) if row is not None and row.worker == WORKERS[index] else row
            for row in world.rows
        )
        replaced = self._set(world._replace(rows=rows), index, Worker())
        yield Move(f"w{index} is replaced", True, replaced)

    def _worker_faults(self, world: World, index: int, worker: Worker) -> Iterator[Move]:
        job = worker.job
        caused = world
        if job is not None:
            caused = self._dead_or_silent(world, job.message.fire)
        elif worker.stored is not None:
            # Only this worker reads the stored result.
            caused = self._dead_or_silent(world, worker.stored[0])
        if worker.has_heartbeat:
            doubted = None if job is None else job._replace(doubted=True)
            slow = self._set(caused, index, worker._replace(has_heartbeat=False, job=doubted))
            yield from self._fault(f"w{index} is slow", slow)
        dead = self._set(caused, index, Worker(alive=False, has_heartbeat=worker.has_heartbeat))
        if job is None or not self.late:
            yield from self._fault(f"w{index} dies", dead)
        if job is not None:
            # Without acks_late, the main process dies before it acknowledges the message.
            dead = self._queue(dead, job.message._replace(redelivered=True))
            yield from self._fault(f"w{index} dies, the message is requeued", dead)
        if job is not None and job.state == "running":
            yield from self._process_dies(world, index, worker, job)

    def _process_dies(self, world: World, index: int, worker: Worker, job: Job) -> Iterator[Move]:
        """Kill the pool process of an attempt; Celery's settings determine what follows."""
        fire = job.message.fire
        name = f"the process of {fire} at w{index} dies"
        failed = self._ended(world, index, Status.FAILED, attempt=None)
        yield from self._fault(f"{name}, reported", failed)
        if self.policy and world.retries:
            retrying = self._failed(self._used_retry(world, fire), index, attempt=None)
            yield from self._fault(f"{name}, reported, to be retried", retrying)
        caused = self._dead_or_silent(world, fire)
        caused = self._set(caused, index, worker._replace(job=None))
        yield from self._fault(f"{name}, unreported", caused)
        again = self._queue(caused, job.message._replace(redelivered=True))
        yield from self._fault(f"{name}, the message is requeued", again)
        stored = worker._replace(job=None, stored=(fire, job.attempt))
        yield from self._fault(
            f"{name} after its result is stored", self._set(world, index, stored)
        )
        if world.retries:
            following = Message(fire, job.attempt, job.message.retries + 1)
            sent = self._queue(self._used_retry(world, fire), following)
            retried = worker._replace(job=job._replace(state="retried"))
            yield from self._fault(f"{name}, retried", self._set(sent, index, retried))

    def _check_pool(self, world: World, index: int, worker: Worker) -> Iterator[Move]:
        """Compare the rows that name a worker with the attempt that it executes."""
        name, job = WORKERS[index], worker.job
        executed = None if job is None else (job.message.fire, job.attempt)
        for fire, row in self._rows(world):
            attempt = (fire, row.attempt)
            if row.status != Status.RUNNING or row.worker != name or attempt == executed:
                continue
            if attempt == worker.stored:
                after = self.steps.write(world.plan, row, name, row.attempt, Status.SUCCEEDED)
            else:
                after = self.steps.drop(world.plan, row, name, row.attempt)
            dropped = self._set(world, index, worker._replace(stored=None))
            yield Move(f"w{index} drops {fire}", True, self._row(dropped, fire, after))

    def _receive(self, world: World, index: int, message: Message) -> Iterator[Move]:
        taken, fire = self._taken(world, message), message.fire
        row = world.rows[fire]
        assert row is not None
        local = message._replace(fire=0)
        here = world.workers[index].unknown_start == (fire, row.attempt)
        after, decision = self.steps.decide(
            world.plan,
            row,
            self._heartbeats(world),
            local,
            WORKERS[index],
            here=here,
            late=self.late,
        )
        name = f"w{index} receives {message}: {decision.action.name}"
        decided = self._row(taken, fire, after)
        if decision.action is StartAction.START:
            unexcused = decided
            world = self._excused(world, message, row.attempt)
            decided = self._excused(decided, message, row.attempt)
            self._check_start(world, index, fire, decision.attempt)
            job = Job(message, decision.attempt)
            worker = world.workers[index]._replace(job=job)
            started = self._row(decided, fire, after._replace(fresh=not worker.has_heartbeat))
            yield Move(name, True, self._set(self._cause(started, fire, -1), index, worker))
            if world.faults:
                unknown = worker._replace(job=None, unknown_start=(fire, decision.attempt))
                deferred = self._set(unexcused, index, unknown)
                yield from self._defer(deferred, index, message, "its commit is not seen")
        else:
            yield Move(name, True, decided)
        yield from self._defer(taken, index, message, "the database is unreachable")

    def _defer(self, world: World, index: int, message: Message, why: str) -> Iterator[Move]:
        if not world.faults:
            return
        copy = message._replace(redelivered=True)
        yield from self._fault(f"w{index} defers {message}: {why}", self._queue(world, copy))

    def _undone(self, world: World, index: int) -> World:
        worker = world.workers[index]
        assert worker.unknown_start is not None
        fire, attempt = worker.unknown_start
        row = world.rows[fire]
        # A later attempt stays.
        if row is not None and row.attempt == attempt:
            after = self.steps.undo_start(world.plan, row, WORKERS[index])
            if row.worker == WORKERS[index] and after.status == Status.LOST:
                raise BrokenPromiseError(f"{fire} is lost, and no body of it began")
            world = self._row(world, fire, after)
        return self._set(world, index, worker._replace(unknown_start=None))

    def _job(self, world: World, index: int, worker: Worker, job: Job) -> Iterator[Move]:
        fire = job.message.fire
        if job.state == "running":
            yield Move(f"w{index} ends {fire}", True, self._ended(world, index, Status.SUCCEEDED))
            if world.faults:
                unwritten = worker._replace(job=job._replace(state="buffered"))
                buffered = self._set(world, index, unwritten)
                name = f"w{index} ends {fire}, the database is unreachable"
                yield from self._fault(name, buffered)
            if world.retries:
                used = self._used_retry(world, fire)
                sent = self._queue(used, Message(fire, job.attempt, job.message.retries + 1))
                retried = worker._replace(job=job._replace(state="retried"))
                yield Move(f"w{index} retries {fire}", False, self._set(sent, index, retried))
            if self.policy and world.retries:
                failing = f"w{index} fails {fire}, to be retried"
                yield Move(failing, False, self._failed(used, index, attempt=job.attempt))
                failed = worker._replace(job=job._replace(state="failed"))
                unwritten = self._set(used, index, failed)
                yield from self._fault(f"{failing}, the database is unreachable", unwritten)
        elif job.state == "failed":
            written = self._failed(world, index, attempt=job.attempt)
            yield Move(f"w{index} writes the failure of {fire}", True, written)
        else:
            if job.state == "buffered":
                # No fault: worker_max_tasks_per_child ends pool processes at any time, for example.
                handed_over = worker._replace(job=job._replace(state="handed over"))
                recycled = self._set(world, index, handed_over)
                yield Move(f"w{index} recycles its pool process", False, recycled)
            status = Status.RETRYING if job.state == "retried" else Status.SUCCEEDED
            yield Move(f"w{index} writes {status}", True, self._ended(world, index, status))
        yield from self._receive_own_message(world, index, job)

    def _receive_own_message(self, world: World, index: int, job: Job) -> Iterator[Move]:
        """Deliver the message of an attempt to the worker that executes it, in another thread."""
        fire = job.message.fire
        for message in {m for m in world.queue if m.fire == fire}:
            row = world.rows[fire]
            # A pool process does not see the buffer of the main process.
            here = job.state not in {"retried", "handed over"}
            after, decision = self.steps.decide(
                world.plan,
                row,
                self._heartbeats(world),
                message._replace(fire=0),
                WORKERS[index],
                here=here,
                late=self.late,
            )
            if decision.action is StartAction.START:
                redelivered = self._excused(world, message, row.attempt)
                self._check_start(redelivered, index, fire, decision.attempt)
                continue
            decided = self._row(self._taken(world, message), fire, after)
            yield Move(f"w{index} refuses {message}", True, decided)
            yield from self._defer(self._taken(world, message), index, message, "unreachable")

    def _failed(self, world: World, index: int, *, attempt: int | None) -> World:
        """End the attempt of a worker as a failure after which beat sends the run again."""
        return self._ended(world, index, Status.RETRYING, attempt=attempt, sent_by_beat=True)

    def _ended(
        self,
        world: World,
        index: int,
        status: Status,
        *,
        sent_by_beat: bool = False,
        **known: int | None,
    ) -> World:
        worker = world.workers[index]
        job = worker.job
        assert job is not None
        row = world.rows[job.message.fire]
        assert row is not None
        attempt = known.get("attempt", job.attempt)
        write = self.steps.write
        # Without the keyword for most ends: the steps are cached by their arguments.
        by_beat = {"retries": job.message.retries} if sent_by_beat else {}
        after = write(world.plan, row, WORKERS[index], attempt, status, **by_beat)
        return self._set(
            self._row(world, job.message.fire, after), index, worker._replace(job=None)
        )

    def _check_start(self, world: World, index: int, fire: int, attempt: int | None) -> None:
        if not world.excuses[fire]:
            raise BrokenPromiseError(f"attempt {attempt} of {fire} starts, and nothing excuses it")
        if attempt == 1 and world.plan.life != "enabled":
            raise BrokenPromiseError(f"{fire} starts while its schedule is {world.plan.life}")
        for other, worker in enumerate(world.workers):
            job = worker.job
            if job is None or job.message.fire != fire:
                continue
            if job.attempt == attempt:
                raise BrokenPromiseError(f"attempt {attempt} of {fire} starts twice")
            if job.state == "running" and not job.doubted:
                raise BrokenPromiseError(f"{fire} starts at w{index} while w{other} runs it")

    # Users

    def _users(self, world: World) -> Iterator[Move]:
        if not world.edits or self.fires == 1:
            return
        calls = {"enabled": ("pause", "delete"), "paused": ("resume", "delete")}
        for call in calls.get(world.plan.life, ()):
            if call == "pause" and world.plan.next_fire == 2:
                continue
            plan, rows = self.steps.edit(world.plan, world.rows, world.time, call)
            changed = world._replace(plan=plan, edits=world.edits - 1)
            for fire, row in enumerate(rows):
                changed = changed if row is None else self._row(changed, fire, row)
            yield Move(call, call == "resume", changed)

    # Changes of a world

    def _excused(self, world: World, message: Message, attempt: int) -> World:
        """Allow one more start if the process of ``attempt`` has ended without writing its success.

        The broker delivers its message again. Celery alone would execute the task again as well.
        """
        if not self.late or not message.redelivered:
            return world
        fire = message.fire
        for worker in world.workers:
            job = worker.job
            left = worker.stored
            if job is not None and job.state == "handed over":
                left = (job.message.fire, job.attempt)
            if left == (fire, attempt):
                return self._cause(world, fire)
        return world

    def _rows(self, world: World) -> Iterator[tuple[int, Row]]:
        return ((fire, row) for fire, row in enumerate(world.rows) if row is not None)

    def _row(self, world: World, fire: int, row: Row) -> World:
        if not row.unfinished and row.status != Status.LOST:
            row = Row(row.status, row.attempt)
        return _changed(world, ROWS, _with(world.rows, fire, row))

    def _aged(self, world: World, fire: int, row: Row) -> World:
        for index, worker in enumerate(world.workers):
            job = worker.job
            if worker.has_heartbeat:
                continue
            if job is not None and job.message.fire == fire:
                doubted = worker._replace(job=job._replace(doubted=True))
                world = self._dead_or_silent(self._set(world, index, doubted), fire)
            elif worker.stored is not None and worker.stored[0] == fire:
                world = self._dead_or_silent(world, fire)
        return self._row(world, fire, row._replace(fresh=False))

    def _beat(self, world: World, index: int, beat: Beat) -> World:
        return _changed(world, BEATS, _with(world.beats, index, beat))

    def _set(self, world: World, index: int, worker: Worker) -> World:
        return _changed(world, WORKER_STATES, _with(world.workers, index, worker))

    def _queue(self, world: World, message: Message) -> World:
        # Two equal messages have the same effect as one that is redelivered, a separate fault.
        return _changed(world, QUEUE, tuple(sorted({*world.queue, message})))

    def _taken(self, world: World, message: Message) -> World:
        return _changed(world, QUEUE, tuple(other for other in world.queue if other != message))

    def _cause(self, world: World, fire: int, more: int = 1) -> World:
        excuses = _with(world.excuses, fire, world.excuses[fire] + more)
        return world._replace(excuses=excuses)

    def _dead_or_silent(self, world: World, fire: int) -> World:
        """Allow one more start, if the run may start again after its worker or process died."""
        return self._cause(world, fire) if self.may_rerun else world

    def _used_retry(self, world: World, fire: int) -> World:
        return self._cause(world._replace(retries=world.retries - 1), fire)

    def _heartbeats(self, world: World) -> tuple[bool, ...]:
        return tuple(worker.has_heartbeat for worker in world.workers)

    def _fault(self, name: str, world: World) -> Iterator[Move]:
        if world.faults:
            yield Move(name, False, world._replace(faults=world.faults - 1))
