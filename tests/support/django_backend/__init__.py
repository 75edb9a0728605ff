"""A database backend that extends one of Django, as packages for metrics and pools do."""
