"""The schedule pages of Flower: ``celery -A proj dynbeat flower``."""
