"""The combinations of database and broker for the fault suite."""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.servers.mysql import MYSQLD_VARIABLE

#: "all" runs each fault test on all its combinations; otherwise it runs on one of them.
FAULTS_VARIABLE = "DYNBEAT_FAULTS"
DATABASES = ("postgresql", "mariadb")
BROKERS = ("redis", "rabbitmq")


@dataclass(frozen=True, slots=True)
class Combination:
    """A kind of database and a kind of broker."""

    database: str
    broker: str

    def __str__(self) -> str:
        return f"{self.database}-{self.broker}"


COMBINATIONS = tuple(itertools.starmap(Combination, itertools.product(DATABASES, BROKERS)))


def select_combinations(
    *, database: str | None = None, broker: str | None = None
) -> Sequence[Combination]:
    """Return the combinations with this database and broker that this test run covers.

    None means any. Raises ValueError for an unknown database or broker.
    """
    if database not in {None, *DATABASES} or broker not in {None, *BROKERS}:
        message = f"unknown combination: database={database!r}, broker={broker!r}"
        raise ValueError(message)
    matching = [
        combination
        for combination in COMBINATIONS
        if database in {None, combination.database} and broker in {None, combination.broker}
    ]
    if os.environ.get(FAULTS_VARIABLE) == "all":
        return matching
    # `nox -s mysql` runs each fault on the server that it is for.
    preferred = "mariadb" if MYSQLD_VARIABLE in os.environ else DATABASES[0]
    return sorted(matching, key=lambda each: each.database != preferred)[:1]
