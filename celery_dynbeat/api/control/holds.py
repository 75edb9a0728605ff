"""Hold and release all schedules, or the schedules of one owner or one group of owners.

A hold is one row for each scope and actor. Holding and listing do not read schedules. Beat
takes the due schedules of a held owner out of its index, and a release makes them due.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.acting import current_actor
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.api.edit import audit
from celery_dynbeat.api.results import HoldInfo, Page, cursors
from celery_dynbeat.api.results.page import PAGE_SIZE, page_of
from celery_dynbeat.common.errors import HeldByOthersError
from celery_dynbeat.common.states import Action
from celery_dynbeat.common.text import MAX_PAGE_SIZE, described_owner, groups_of, is_group, shorten
from celery_dynbeat.db.models import Hold
from celery_dynbeat.process.context import Context
from celery_dynbeat.store import holds
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners

#: Other actors that an error names.
_MAX_NAMED = 5
#: The order of the pages, as their cursors name it.
_OLDEST = "oldest_hold"


class HoldCalls(Calls):
    """The calls for holds."""

    def hold(
        self,
        *,
        until: datetime | None = None,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> HoldInfo:
        """Stop the schedules of the owner, the group or all owners until ``release`` or ``until``.

        - Beat sends no fire times, and backfills and ``rerun_many`` wait. Runs of ``run_now`` and
          ``rerun``, runs that are already recorded, and their retries still start.
        - After the hold, ``catch_up`` decides which missed fire times are sent, as after downtime.
        - A schedule's own pause does not change.
        - ``until`` is an aware datetime in the future. ``reason`` has at most 1,024 characters.
        - Each actor can have one hold of an owner, one of a group, and one of everything. A second
          call by the same actor changes the reason and the end of the hold. The owner is held while
          a hold of the owner, of one of its groups, or of everything is in force.

        The cost does not depend on the number of schedules. A batch that beat has claimed before
        the commit is still sent. Raises InvalidScheduleError.

        >>> mine.hold(actor="alice", reason="ticket 12").reason
        'ticket 12'
        >>> [hold.actor for hold in mine.holds()]
        ['alice']
        """
        until = checks.check_instant("until", until)

        def work(session: Session) -> HoldInfo:
            now = self._context.clock.now()
            if until is not None and until <= now:
                raise checks.invalid("until", until, f"must be later than now, {now}, or None")
            made = _hold(self._context, session, owner=self._owner, until=until, now=now)
            return HoldInfo.of(made)

        return self._write(session, work, actor=actor, reason=reason)

    def release(
        self,
        *,
        all_actors: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        session: Session | None = None,
    ) -> Sequence[HoldInfo]:
        """End the actor's hold of the owner, or of everything, and return the ended holds.

        If ``all_actors`` is true, the holds of all actors end. Releasing an owner does not end a
        hold of everything or of a group. Releasing everything does not end a hold of an owner. If
        there is no such hold, the returned list is empty. Raises HeldByOthersError if only other
        actors have a hold.

        >>> _ = mine.hold(actor="alice")
        >>> len(mine.release(actor="alice"))
        1
        """
        if not isinstance(all_actors, bool):
            raise checks.invalid("all_actors", all_actors, "must be True or False")

        def work(session: Session) -> Sequence[HoldInfo]:
            return _release(self._context, session, owner=self._owner, all_actors=all_actors)

        return self._write(session, work, actor=actor, reason=reason)

    def holds(
        self,
        *,
        limit: int = PAGE_SIZE,
        after: str | None = None,
        session: Session | None = None,
    ) -> Page[HoldInfo]:
        """Return one page of up to ``limit`` holds in force, the oldest first.

        For an owner, the page contains the holds of the owner, of its groups and of everything, at
        most 1,000 of each. ``after`` is the ``cursor`` of the previous page. ``limit`` is at most
        1,000. Raises InvalidScheduleError.
        """
        check_limit("limit", limit)
        key = cursors.decode_id(after, order=_OLDEST)
        now = self._context.now(session)

        def work(session: Session) -> Sequence[Hold]:
            if self._owner is None:
                return holds.page(session, now=now, after=key, limit=limit + 1)
            # In the order of ids, PostgreSQL would read the holds of all owners.
            rows = [
                row
                for owner in (None, *groups_of(self._owner), self._owner)
                for row in holds.of_owner(session, owner=owner, now=now, limit=MAX_PAGE_SIZE)
                if row.id > key
            ]
            return sorted(rows, key=lambda row: row.id)[: limit + 1]

        rows = self._context.read_many(session, work)
        return page_of(
            rows, limit=limit, order=_OLDEST, info=HoldInfo.of, key=lambda info: (info.id,)
        )


def _hold(
    context: Context,
    session: Session,
    *,
    owner: str | None,
    until: datetime | None,
    now: datetime,
) -> Hold:
    actor, reason = current_actor().actor, current_actor().reason
    related = _lock_related(session, owner, now)
    present = holds.lock_of(session, owner=owner, now=now)
    # After the locks, for which this transaction may have waited.
    now = context.clock.now()
    of_actor = [each for each in present if each.actor == actor]
    if not of_actor:
        new = Hold(owner=owner, actor=actor, reason=reason, created_at=now, until_at=until)
        holds.add(session, new)
        _emit(session, events.HoldStarted, HoldInfo.of(new))
        edit = _edit(Action.HOLD, before=None, after=HoldInfo.of(new))
        audit.record(context, session, [edit], now=now)
        return new
    # Two first calls at the same time insert two holds.
    mine, *others = of_actor
    before = HoldInfo.of(mine)
    mine.reason, mine.until_at = reason, until
    session.flush()
    if others:
        present = _without(session, present, others)
    edit = _edit(Action.HOLD, before=before, after=HoldInfo.of(mine))
    audit.record(context, session, [edit], now=now)
    # The new end can be earlier.
    _on_shorter(context, session, owner=owner, left=present, related=related, now=now)
    return mine


def _release(
    context: Context, session: Session, *, owner: str | None, all_actors: bool
) -> Sequence[HoldInfo]:
    actor, now = current_actor().actor, context.clock.now()
    related = _lock_related(session, owner, now)
    present = holds.lock_of(session, owner=owner, now=now)
    # After the locks, for which this transaction may have waited.
    now = context.clock.now()
    ended = [each for each in present if all_actors or each.actor == actor]
    if not ended:
        if present:
            raise _held_by_others(owner, present, actor=actor)
        return ()
    infos = tuple(map(HoldInfo.of, ended))
    left = _without(session, present, ended)
    edits = [_edit(Action.RELEASE, before=info, after=None) for info in infos]
    audit.record(context, session, edits, now=now)
    for info in infos:
        _emit(session, events.HoldReleased, info)
    _on_shorter(context, session, owner=owner, left=left, related=related, now=now)
    return infos


def _emit(
    session: Session, event_type: type[events.HoldStarted | events.HoldReleased], hold: HoldInfo
) -> None:
    if has_listeners(event_type):
        event = event_type(
            owner=hold.owner, actor=hold.actor, reason=hold.reason, until=hold.until_at
        )
        emit_on_commit(session, event)


def _without(session: Session, present: Sequence[Hold], deleted: Sequence[Hold]) -> Sequence[Hold]:
    """Delete some of the holds and return the others."""
    for each in deleted:
        session.expunge(each)
    holds.delete_ids(session, [each.id for each in deleted])
    return [each for each in present if each not in deleted]


def _edit(action: Action, *, before: HoldInfo | None, after: HoldInfo | None) -> audit.Edit:
    """Return the edit of one hold for the audit."""
    some = after or before
    assert some is not None  # noqa: S101 - one of both is given
    return audit.Edit(
        owner=some.owner,
        action=action,
        old=None if before is None else before.to_dict(),
        new=None if after is None else after.to_dict(),
        reason=some.reason,
    )


def _lock_related(session: Session, owner: str | None, now: datetime) -> Mapping[str, datetime]:
    """Return the ends of the holds of other names that hold the same schedules, locked."""
    return {} if owner is None else holds.lock_related(session, owner=owner, now=now)


def _on_shorter(
    context: Context,
    session: Session,
    *,
    owner: str | None,
    left: Iterable[Hold],
    related: Mapping[str, datetime],
    now: datetime,
) -> None:
    """Make the waiting schedules due at the end of the holds that are in force, and wake beat.

    ``left`` are the holds of the owner. ``related`` are the ends of the holds of its groups. For a
    group, ``related`` also has the ends of the holds of the owners and groups in it.
    """
    if owner is not None:
        own = [each.until_at or holds.NEVER for each in left]
        ends = {**related, owner: max(own)} if own else related
        if is_group(owner):
            holds.move_held_of_group(session, group=owner, now=now, ends=ends)
        else:
            end = holds.latest_of([owner], ends).get(owner)
            holds.move_held(session, owner=owner, now=now, end=end)
    context.notifier.notify(session)


def _held_by_others(owner: str | None, present: Sequence[Hold], *, actor: str) -> HeldByOthersError:
    actors = sorted({each.actor for each in present})
    named = ", ".join(map(shorten, actors[:_MAX_NAMED]))
    scope = "everything" if owner is None else described_owner(owner)
    msg = (
        f"{scope} is held by {named}{', ...' if len(actors) > _MAX_NAMED else ''}, not by"
        f" {actor!r}: holds() shows why; call release(actor=...) as that actor, or"
        " release(all_actors=True) to end all of these holds"
    )
    return HeldByOthersError(msg, owner=owner, actors=actors)
