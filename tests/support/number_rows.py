"""A table of numbers, for an INSERT of many rows."""


def numbers(kind: str, *, rows: int) -> str:
    """Return a table for FROM whose column n has the numbers from 1 to ``rows``."""
    if kind == "postgresql":
        return f"generate_series(1, {rows}) AS s(n)"
    # MySQL has no tables like MariaDB's seq_1_to_9.
    array = f"CONCAT('[', REPEAT('0,', {rows} - 1), '0]')"
    table = f"JSON_TABLE({array}, '$[*]' COLUMNS (n FOR ORDINALITY)) AS j"
    return f"(SELECT CAST(n AS SIGNED) AS n FROM {table}) AS s"
