"""The floors: the services and Celery without this project, in hand-written code."""
