"""The JSON API. The owner of each schedule is the user of the session, and never a parameter."""

from collections.abc import Sequence
from typing import Any, Literal
from zoneinfo import ZoneInfo

from bodies import (
    ChosenZone,
    Errors,
    NewReminder,
    PreviewedRule,
    ShownPreview,
    ShownReminder,
    ShownRun,
    ShownSchedule,
)
from database import Reminder, Transaction, dynbeat
from fastapi import APIRouter, Depends
from login import User, check_token, manual_runs
from sqlalchemy import delete, select, update

from celery_dynbeat import Preview, RunInfo, ScheduleInfo


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Errors} for status in statuses}


router = APIRouter(prefix="/api", tags=["reminders"], responses=_refusals(401, 413))
#: Requests that change something need the token of the session.
writes: dict[str, Any] = {"dependencies": [Depends(check_token)]}

TASKS = {"reminder": "tasks.remind", "report": "tasks.send_report"}


def owner_of(user: str) -> str:
    """Return the owner of the user's schedules."""
    return f"user:{user}"


def _shown(schedule: ScheduleInfo, timezone: str) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "rule": schedule.trigger.describe(timezone) if schedule.trigger else "",
        "state": schedule.state,
        "next": schedule.next_run_at,
    }


@router.get("/reminders", response_model=list[ShownReminder])
async def listed(user: User, session: Transaction) -> list[dict[str, Any]]:
    """Return the user's reminders with their schedules."""
    rows = await session.scalars(select(Reminder).where(Reminder.user == user))
    texts = {row.name: (row.kind, row.text) for row in rows}
    mine = dynbeat.schedules.for_owner(owner_of(user), session=session)
    timezone = await mine.timezone()
    return [
        {**_shown(schedule, timezone), "kind": kind, "text": text}
        for schedule in await mine.list()
        for kind, text in [texts.get(schedule.name, ("", ""))]
    ]


# Not async: a costly rule is computed in a thread, and other requests do not wait for it.
@router.post("/preview", response_model=ShownPreview, responses=_refusals(400, 403, 422), **writes)
def preview(user: User, body: PreviewedRule) -> Preview:
    """Return the rule in words and its next fire times, in the user's time zone."""
    mine = dynbeat.sync.schedules.for_owner(owner_of(user))
    trigger = body.rule.trigger(ZoneInfo(mine.timezone()))
    return mine.preview(trigger, body.name or None)


@router.post(
    "/reminders",
    status_code=201,
    response_model=ShownSchedule,
    responses=_refusals(400, 403, 409, 422),
    **writes,
)
async def create(user: User, body: NewReminder, session: Transaction) -> dict[str, Any]:
    """Create a reminder and its schedule, both or neither."""
    mine = dynbeat.schedules.for_owner(owner_of(user), session=session)
    trigger = body.rule.trigger(ZoneInfo(await mine.timezone()))
    made = await mine.create(
        body.name, task=TASKS[body.kind], kwargs={"user": user, "text": body.text}, trigger=trigger
    )
    # After the schedule: an owner has a name once, and the error of the API says so.
    session.add(Reminder(user=user, name=body.name, kind=body.kind, text=body.text))
    return _shown(made, await mine.timezone())


@router.put(
    "/reminders/{name}",
    response_model=ShownSchedule,
    responses=_refusals(400, 403, 404, 422),
    **writes,
)
async def change(user: User, name: str, body: NewReminder, session: Transaction) -> dict[str, Any]:
    """Change the text and the rule of a reminder. Its name stays."""
    mine = dynbeat.schedules.for_owner(owner_of(user), session=session)
    trigger = body.rule.trigger(ZoneInfo(await mine.timezone()))
    changed = await mine.update(
        name, task=TASKS[body.kind], kwargs={"user": user, "text": body.text}, trigger=trigger
    )
    row = update(Reminder).where(Reminder.user == user, Reminder.name == name)
    await session.execute(row.values(kind=body.kind, text=body.text))
    return _shown(changed, await mine.timezone())


@router.post(
    "/reminders/{name}/{action}",
    response_model=ShownSchedule,
    responses=_refusals(403, 404, 422, 429),
    **writes,
)
async def act(
    user: User,
    name: str,
    action: Literal["pause", "resume", "skip-next", "run"],
    session: Transaction,
) -> dict[str, Any]:
    """Pause or resume a reminder, leave out its next fire time, or run it now."""
    mine = dynbeat.schedules.for_owner(owner_of(user), session=session, actor=user)
    if action == "pause":
        await mine.pause(name)
    elif action == "resume":
        await mine.resume(name)
    elif action == "run":
        manual_runs.count(user)
        await mine.run_now(name)
    else:
        for fire_time in await mine.upcoming(name, count=1):
            await mine.skip(name, fire_time.fire_at)
    return _shown(await mine.get(name), await mine.timezone())


@router.delete("/reminders/{name}", status_code=204, responses=_refusals(403, 404, 422), **writes)
async def remove(user: User, name: str, session: Transaction) -> None:
    """Delete a reminder and its schedule."""
    await dynbeat.schedules.for_owner(owner_of(user), session=session).delete(name)
    await session.execute(delete(Reminder).where(Reminder.user == user, Reminder.name == name))


@router.get(
    "/reminders/{name}/history", response_model=list[ShownRun], responses=_refusals(404, 422)
)
async def history(user: User, name: str, session: Transaction) -> Sequence[RunInfo]:
    """Return the last runs of a reminder, the newest first."""
    mine = dynbeat.schedules.for_owner(owner_of(user), session=session)
    # Raises an error without the schedule. runs() alone has no runs for an unknown name.
    await mine.get(name)
    return await mine.runs(name, limit=20)


@router.put("/timezone", responses=_refusals(400, 403, 422), **writes)
async def choose_zone(user: User, body: ChosenZone, session: Transaction) -> ChosenZone:
    """Choose the time zone of all rules of the user. Their next fire times move at once."""
    mine = dynbeat.schedules.for_owner(owner_of(user), session=session)
    await mine.set_timezone(body.timezone)
    return body
