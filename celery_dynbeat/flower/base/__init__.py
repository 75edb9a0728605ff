"""The common parts of the pages: access, database calls, zones, URLs, fragments of HTML."""
