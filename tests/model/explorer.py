"""Search all reachable worlds for one from which no sequence of moves settles."""

from collections import deque
from dataclasses import dataclass

from celery_dynbeat.common.states import Status
from tests.model.machine import Beat, BrokenPromiseError, Machine, Worker, World
from tests.model.steps import WORKERS, Row

#: The other worker.
OTHER = dict(zip(WORKERS, reversed(WORKERS), strict=True))


@dataclass(frozen=True, slots=True)
class Exploration:
    """The numbers of worlds and moves; the histories of up to three stuck worlds."""

    worlds: int
    moves: int
    stuck: list[list[str]]


def explore(machine: Machine, first: World) -> Exploration:
    """Visit every reachable world. Raises BrokenPromiseError with the history that led to it."""
    first = canonical(first)
    known: dict[World, int] = {first: 0}
    origin: list[tuple[int, str]] = [(-1, "")]
    backwards: list[list[int]] = [[]]
    settled: list[int] = []
    todo = deque([(first, 0)])
    moves = 0
    while todo:
        world, here = todo.popleft()
        if is_settled(machine, world):
            settled.append(here)
        try:
            for move in machine.moves(world):
                moves += 1
                after = canonical(move.world)
                there = known.get(after)
                if there is None:
                    there = known[after] = len(origin)
                    origin.append((here, move.name))
                    backwards.append([])
                    todo.append((after, there))
                if move.progress:
                    backwards[there].append(here)
        except BrokenPromiseError as error:
            error.add_note("\n".join(history(origin, here)))
            raise
    stuck = _unreached(backwards, settled)
    return Exploration(len(origin), moves, [history(origin, index) for index in stuck[:3]])


def canonical(world: World) -> World:
    """Return one world for all worlds that behave in the same way.

    Beats have no names, and the two workers may change theirs. The message of a run that has ended
    is refused: a separate test proves it.
    """
    rows, workers, beats = world.rows, world.workers, world.beats
    queue = tuple([message for message in world.queue if _may_start(rows[message.fire])])
    if not _in_order(rows, workers):
        rows = tuple([None if row is None else _renamed(row) for row in rows])
        workers = workers[::-1]
    if beats[1] < beats[0]:
        beats = beats[::-1]
    return world._replace(rows=rows, queue=queue, beats=beats, workers=workers)


def _may_start(row: Row | None) -> bool:
    return row is None or row.unfinished or row.status == Status.LOST


def _in_order(rows: tuple[Row | None, ...], workers: tuple[Worker, ...]) -> bool:
    """Return whether the workers are ordered by their states, or by the rows if these are equal."""
    # None cannot be compared.
    first, second = ([() if part is None else part for part in one] for one in workers)
    if first != second:
        return first < second
    names = [row.worker for row in rows if row is not None and row.worker is not None]
    return not names or names[0] == WORKERS[0]


def _renamed(row: Row) -> Row:
    return row if row.worker is None else row._replace(worker=OTHER[row.worker])


def is_settled(machine: Machine, world: World) -> bool:
    """Return whether all work is done: each fire time has a run that ended, or was skipped."""
    if world.plan.life == "enabled":
        finished = world.time == machine.fires and world.plan.next_fire == 2
        if not finished or not all(_accounted(world, fire) for fire in range(machine.fires)):
            return False
    ended = not any(row is not None and row.unfinished for row in world.rows)
    idle = all(worker.job is None for worker in world.workers)
    return ended and idle and world.beats == (Beat(), Beat())


def _accounted(world: World, fire: int) -> bool:
    # A skipped row counts for the fire times before it, too.
    later = [row for row in world.rows[fire:] if row is not None]
    return world.rows[fire] is not None or any(row.status == "skipped" for row in later)


def _unreached(backwards: list[list[int]], settled: list[int]) -> list[int]:
    reached, todo = set(settled), list(settled)
    while todo:
        for before in backwards[todo.pop()]:
            if before not in reached:
                reached.add(before)
                todo.append(before)
    return [index for index in range(len(backwards)) if index not in reached]


def history(origin: list[tuple[int, str]], index: int) -> list[str]:
    """Return the names of the moves that led to a world. From move to move, w1 and w2 may swap."""
    names = []
    while index > 0:
        index, name = origin[index]
        names.append(name)
    return names[::-1]
