"""Users log in and manage their reminders and reports.

uvicorn application:api
"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import available_timezones

import reminders
from database import create_tables, dynbeat, engine
from errors import FORM, add_error_handlers, refusal
from fastapi import FastAPI, Form, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from login import (
    SESSION_AGE,
    TooManyError,
    User,
    check_origin,
    log_in,
    log_out,
    session_user,
)
from starlette.middleware.sessions import SessionMiddleware

HERE = Path(__file__).parent
MAX_BODY = 32_768
templates = Jinja2Templates(HERE / "templates")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Create the tables at the start, and close the connections at the end."""
    await create_tables()
    yield
    await engine.dispose()


api = FastAPI(title="Reminders", lifespan=lifespan)
api.include_router(reminders.router)
add_error_handlers(api)
api.add_middleware(
    SessionMiddleware,
    # Without the variable, a restart ends all sessions.
    secret_key=os.environ.get("SESSION_SECRET") or secrets.token_hex(32),
    same_site="lax",
    max_age=int(SESSION_AGE.total_seconds()),
    # SESSION_HTTPS=0 is for plain HTTP on your own machine: other people read such a cookie.
    https_only=os.environ.get("SESSION_HTTPS") != "0",
)
api.mount("/static", StaticFiles(directory=HERE / "static"), name="static")


@api.middleware("http")
async def protect(request: Request, call_next: Any) -> Response:
    """Refuse large bodies, and add headers that limit what a page can load."""
    length = request.headers.get("Content-Length", "0")
    if request.headers.get("Transfer-Encoding") or not length.isdigit() or int(length) > MAX_BODY:
        return refusal(413, FORM, "the body is too large")
    response: Response = await call_next(request)
    if not request.url.path.startswith(("/docs", "/openapi")):
        response.headers["Content-Security-Policy"] = "default-src 'self'; frame-ancestors 'none'"
    if not request.url.path.startswith("/static"):
        # The browser keeps no copy of what a user has seen, also not for after the logout.
        response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    return response


@api.get("/", response_class=HTMLResponse, include_in_schema=False)
async def page(request: Request) -> Response:
    """Show the reminders of the user, or the login."""
    user = await session_user(request)
    if user is None:
        return templates.TemplateResponse(request, "login.html", {"error": ""})
    mine = dynbeat.schedules.for_owner(reminders.owner_of(user))
    shown = {
        "user": user,
        "token": request.session["token"],
        "timezone": await mine.timezone(),
        "zones": sorted(available_timezones()),
    }
    return templates.TemplateResponse(request, "page.html", shown)


@api.post("/login", include_in_schema=False)
async def login(
    request: Request, name: Annotated[str, Form()], password: Annotated[str, Form()]
) -> Response:
    """Start a session."""
    check_origin(request)
    status, error = 401, "The name or the password is wrong."
    try:
        if await log_in(request, name[:80], password[:200]):
            return RedirectResponse("/", 303)
    except TooManyError:
        status, error = 429, "Too many wrong passwords. Wait a minute."
    return templates.TemplateResponse(request, "login.html", {"error": error}, status_code=status)


@api.post("/logout", include_in_schema=False)
async def logout(request: Request, user: User) -> Response:
    """End the session."""
    del user
    try:
        check_origin(request)
    except HTTPException:
        return RedirectResponse("/", 303)
    await log_out(request)
    return RedirectResponse("/", 303)
