"""Limits of arguments and columns, for code that does not import the database."""

#: The characters of an owner, a name, and each other short text.
NAME_LENGTH = 255
#: The items of a page.
MAX_PAGE_SIZE = 1_000
#: The unfinished runs of a request.
MAX_REQUEST_BATCH = 1_000
#: The runs that one call cancels.
MAX_CANCELLED = 100_000
