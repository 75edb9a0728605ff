"""The reason of a database error, in one line for a log."""

from sqlalchemy.exc import SQLAlchemyError

#: Characters. A driver may quote a statement.
MAX_LENGTH = 200


def reason_of(error: BaseException) -> str:
    """Return the class and the first line of a database error; only the class of another error.

    Another error may quote an argument of a task or a URL with its password.
    """
    # SQLAlchemy adds the statement to the driver's error.
    cause = getattr(error, "orig", None) or error
    name = type(cause).__name__
    text = str(cause).partition("\n")[0] if isinstance(error, SQLAlchemyError) else ""
    return f"{name}: {text[:MAX_LENGTH]}" if text else name
