"""What runs in ``celery beat``."""
