"""What the pages share: access, database calls, zones, URLs, fragments of HTML."""
