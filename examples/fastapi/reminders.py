"""The JSON API. The owner of each schedule is the user of the session, and never a parameter."""

from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from database import Reminder, Transaction, dynbeat
from fastapi import APIRouter, Depends
from login import User, check_token
from pydantic import BaseModel, StringConstraints
from rules import Rule
from sqlalchemy import delete, select, update

from celery_dynbeat import ScheduleInfo

router = APIRouter(prefix="/api", tags=["reminders"])
#: Requests that change something need the token of the session.
writes = {"dependencies": [Depends(check_token)]}

TASKS = {"reminder": "tasks.remind", "report": "tasks.send_report"}
Name = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80, pattern=r"^[^/]+$")
]
Text = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class NewReminder(BaseModel):
    """A reminder or a report, and when it is due."""

    name: Name
    kind: Literal["reminder", "report"] = "reminder"
    text: Text
    rule: Rule


class Previewed(BaseModel):
    """A rule that the user has not saved yet."""

    name: str = ""
    rule: Rule


class ChosenZone(BaseModel):
    """The time zone of a user."""

    timezone: Annotated[str, StringConstraints(max_length=80)]


def owner_of(user: str) -> str:
    """Return the owner of the user's schedules."""
    return f"user:{user}"


async def _zone(user: str) -> ZoneInfo:
    return ZoneInfo(await dynbeat.schedules.for_owner(owner_of(user)).timezone())


def _shown(schedule: ScheduleInfo) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "rule": schedule.trigger.describe() if schedule.trigger else "",
        "state": schedule.state,
        "next": schedule.next_run_at.isoformat() if schedule.next_run_at else None,
    }


@router.get("/reminders")
async def listed(user: User, session: Transaction) -> list[dict[str, Any]]:
    """Return the user's reminders with their schedules."""
    rows = await session.scalars(select(Reminder).where(Reminder.user == user))
    texts = {row.name: (row.kind, row.text) for row in rows}
    mine = dynbeat.schedules.for_owner(owner_of(user))
    return [
        {**_shown(schedule), "kind": kind, "text": text}
        for schedule in await mine.list(session=session)
        for kind, text in [texts.get(schedule.name, ("", ""))]
    ]


@router.post("/preview", **writes)
async def preview(user: User, body: Previewed) -> dict[str, Any]:
    """Return the rule in words and its next fire times, in the user's time zone."""
    mine = dynbeat.schedules.for_owner(owner_of(user))
    trigger = body.rule.trigger(await _zone(user))
    return (await mine.preview(body.name or "preview", trigger)).to_dict()


@router.post("/reminders", status_code=201, **writes)
async def create(user: User, body: NewReminder, session: Transaction) -> dict[str, Any]:
    """Create a reminder and its schedule, both or neither."""
    trigger = body.rule.trigger(await _zone(user))
    made = await dynbeat.schedules.for_owner(owner_of(user)).create(
        body.name,
        task=TASKS[body.kind],
        kwargs={"user": user, "text": body.text},
        trigger=trigger,
        session=session,
    )
    # After the schedule: an owner has a name once, and the error of the API says so.
    session.add(Reminder(user=user, name=body.name, kind=body.kind, text=body.text))
    return _shown(made)


@router.put("/reminders/{name}", **writes)
async def change(user: User, name: str, body: NewReminder, session: Transaction) -> dict[str, Any]:
    """Change the text and the rule of a reminder. Its name stays."""
    trigger = body.rule.trigger(await _zone(user))
    row = update(Reminder).where(Reminder.user == user, Reminder.name == name)
    await session.execute(row.values(kind=body.kind, text=body.text))
    changed = await dynbeat.schedules.for_owner(owner_of(user)).update(
        name,
        task=TASKS[body.kind],
        kwargs={"user": user, "text": body.text},
        trigger=trigger,
        session=session,
    )
    return _shown(changed)


@router.post("/reminders/{name}/{action}", **writes)
async def act(
    user: User,
    name: str,
    action: Literal["pause", "resume", "skip-next", "run"],
    session: Transaction,
) -> dict[str, Any]:
    """Pause or resume a reminder, leave out its next fire time, or run it now."""
    mine = dynbeat.schedules.for_owner(owner_of(user))
    with dynbeat.acting(actor=user):
        if action == "pause":
            await mine.pause(name, session=session)
        elif action == "resume":
            await mine.resume(name, session=session)
        elif action == "run":
            await mine.run_now(name, session=session)
        else:
            for fire_time in await mine.upcoming(name, count=1, session=session):
                await mine.skip(name, fire_time, session=session)
        return _shown(await mine.get(name, session=session))


@router.delete("/reminders/{name}", status_code=204, **writes)
async def remove(user: User, name: str, session: Transaction) -> None:
    """Delete a reminder and its schedule."""
    await session.execute(delete(Reminder).where(Reminder.user == user, Reminder.name == name))
    await dynbeat.schedules.for_owner(owner_of(user)).delete(name, session=session)


@router.get("/reminders/{name}/history")
async def history(user: User, name: str, session: Transaction) -> list[dict[str, Any]]:
    """Return the last runs of a reminder, the newest first."""
    mine = dynbeat.schedules.for_owner(owner_of(user))
    # Raises an error without the schedule. runs() alone has no runs for an unknown name.
    await mine.get(name, session=session)
    runs = await mine.runs(name, limit=20, session=session)
    keys = ("id", "scheduled_for", "status", "origin", "finished_at", "error")
    return [{key: run.to_dict()[key] for key in keys} for run in runs]


@router.put("/timezone", **writes)
async def choose_zone(user: User, body: ChosenZone, session: Transaction) -> dict[str, str]:
    """Choose the time zone of all rules of the user. Their next fire times move at once."""
    mine = dynbeat.schedules.for_owner(owner_of(user))
    await mine.set_timezone(body.timezone, session=session)
    return {"timezone": body.timezone}
