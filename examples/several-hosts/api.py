"""The API of the application: ``uvicorn api:api``. A load balancer sends each request to any host.

PUT creates or replaces a reminder, DELETE cancels it. Both may be repeated: a client that got no
answer asks again, at the other host.
"""

from datetime import datetime

from app import dynbeat
from fastapi import FastAPI

from celery_dynbeat import NotFoundError, Once

api = FastAPI()


@api.put("/users/{user}/reminders/{name}")
def remind(user: str, name: str, at: datetime) -> dict[str, str]:
    """Remind the user once, at an instant in ISO 8601."""
    mine = dynbeat.schedules.for_owner(f"user:{user}")
    schedule = mine.upsert(name, task="remind", trigger=Once(at))
    return {"reminder": schedule.name}


@api.delete("/users/{user}/reminders/{name}")
def cancel(user: str, name: str) -> dict[str, bool]:
    """Cancel the reminder. A reminder that does not exist needs no cancellation."""
    try:
        dynbeat.schedules.for_owner(f"user:{user}").delete(name)
    except NotFoundError:
        return {"existed": False}
    return {"existed": True}


@api.get("/users/{user}/reminders")
def reminders(user: str) -> list[str]:
    """Return the names of the user's reminders."""
    return [each.name for each in dynbeat.schedules.for_owner(f"user:{user}").list()]
