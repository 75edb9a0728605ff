"""Log records as JSON: ``dynbeat_log_format = "json"``."""
