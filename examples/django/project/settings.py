"""Settings of the example. Without variables of the environment it needs no server."""

import os
import secrets
from pathlib import Path

from django import VERSION

FOLDER = Path(os.environ.get("DYNBEAT_DEMO_FOLDER", "."))

DEBUG = False
# A real project sets it. Without it, a restart ends all sessions.
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY") or secrets.token_hex(32)
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    # Its tables come with `migrate`, its pages are in the admin.
    "celery_dynbeat.django",
    "reports",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    # The user of a request is the actor of its calls.
    "celery_dynbeat.django.middleware.acting_user",
]
ROOT_URLCONF = "project.urls"
STATIC_URL = "static/"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "db.sqlite3",
        # Beat and the worker write to the same file. A transaction takes the write lock first.
        # Before Django 5.1, its first statement must be a write.
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"}
        if VERSION >= (5, 1)
        else {"timeout": 30},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATA_UPLOAD_MAX_MEMORY_SIZE = 32_768
USE_TZ = True
# This is also the zone of rules that name none, for users who have not set a zone.
TIME_ZONE = "UTC"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "reports"

CELERY_BROKER_URL = f"sqla+sqlite:///{FOLDER}/broker.sqlite3"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULER = "dynbeat"
CELERY_DYNBEAT_DATABASE_URL = "django://default"
CELERY_DYNBEAT_OWNER_LIMITS = {"*": {"max_schedules": 10}}
CELERY_DYNBEAT_MIN_INTERVAL = 60
# SQLite and its broker cannot notify beat of a change, so beat polls twice a second.
CELERY_DYNBEAT_POLL_INTERVAL = 0.5
