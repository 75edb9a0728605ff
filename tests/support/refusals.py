"""What a database administrator adds to the tables, so that they refuse statements of beat."""

from celery_dynbeat import Dynbeat

_SQLITE = """
    CREATE TRIGGER {name} BEFORE {action} ON {table} WHEN {when}
    BEGIN SELECT RAISE(ABORT, 'refused by a trigger'); END
"""
_MYSQL = """
    CREATE TRIGGER {name} BEFORE {action} ON {table} FOR EACH ROW
    BEGIN
        IF {when} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by a trigger'; END IF;
    END
"""
_POSTGRESQL = (
    """
    CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF {when} THEN RAISE EXCEPTION 'refused by a trigger'; END IF;
        RETURN COALESCE(NEW, OLD);
    END $$
    """,
    "CREATE TRIGGER {name} BEFORE {action} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
)


def refuse(dynbeat: Dynbeat, *, action: str, table: str, when: str, name: str = "refusing") -> None:
    """Create a trigger that refuses each ``action`` on a row for which ``when`` is true."""
    values = {"action": action, "table": table, "when": when, "name": name}
    kind = dynbeat.context.database.engine.dialect.name
    statements = {"sqlite": (_SQLITE,), "postgresql": _POSTGRESQL}.get(kind, (_MYSQL,))
    execute_ddl(dynbeat, *(each.format(**values) for each in statements))


def accept(dynbeat: Dynbeat, *, table: str, name: str = "refusing") -> None:
    """Drop the trigger."""
    on = f" ON {table}" if dynbeat.context.database.engine.dialect.name == "postgresql" else ""
    execute_ddl(dynbeat, f"DROP TRIGGER {name}{on}")


def execute_ddl(dynbeat: Dynbeat, *statements: str) -> None:
    """Execute statements of data definition as a database administrator."""
    with dynbeat.context.database.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
