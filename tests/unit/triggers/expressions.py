"""Strategies for valid cron expressions as people write them."""

from hypothesis import strategies as st

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def items(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    spans = st.tuples(numbers, numbers).map(sorted)
    steps = st.integers(1, 2 * high)
    span = spans.map(lambda ends: f"{ends[0]}-{ends[1]}")
    choices = [
        numbers.map(str),
        span,
        st.tuples(span, steps).map(lambda parts: f"{parts[0]}/{parts[1]}"),
        st.tuples(numbers, numbers).map(lambda ends: f"{ends[0]}-{ends[1]}"),
    ]
    if names:
        choices += [st.sampled_from(names), st.permutations(names).map(lambda n: f"{n[0]}-{n[1]}")]
    return st.one_of(choices)


def fields(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    stars = st.one_of(st.just("*"), st.integers(1, 2 * high).map(lambda n: f"*/{n}"))
    lists = st.lists(items(low, high, names), min_size=1, max_size=3).map(",".join)
    return st.one_of(stars, lists, st.tuples(stars, lists).map(",".join))


def special_days() -> st.SearchStrategy[str]:
    """Return days of the month that depend on the month."""
    days = st.integers(1, 31)
    return st.one_of(
        st.sampled_from(["l", "lw", "31w", "1w", "30w", "29w"]),
        days.map("{}w".format),
        days.map("w{}".format),
        st.integers(1, 30).map("l-{}".format),
        st.integers(1, 30).map("l-{}w".format),
    )


def month_days() -> st.SearchStrategy[str]:
    special = st.lists(st.one_of(special_days(), items(1, 31)), min_size=1, max_size=3)
    return st.one_of(
        *(st.just("*"), st.just("l"), fields(1, 31), items(1, 31).map("{},l".format)),
        *(special_days(), special.map(",".join)),
    )


def weekdays() -> st.SearchStrategy[str]:
    nth = st.tuples(st.sampled_from([*WEEKDAYS, "0", "7"]), st.integers(1, 5))
    nths = nth.map(lambda pair: f"{pair[0]}#{pair[1]}")
    lasts = st.one_of(
        st.sampled_from([*WEEKDAYS, "0", "5", "7"]).map("{}l".format),
        st.integers(0, 7).map("l{}".format),
    )
    special = st.lists(st.one_of(nths, lasts), min_size=1, max_size=2)
    mixed = st.lists(st.one_of(nths, lasts, items(0, 6, WEEKDAYS)), min_size=1, max_size=3)
    return st.one_of(
        *(st.just("*"), fields(0, 6, WEEKDAYS), items(1, 7)),
        *(special.map(",".join), mixed.map(",".join)),
    )


def dates() -> st.SearchStrategy[str]:
    months = st.one_of(st.just("*"), fields(1, 12, MONTHS))
    return st.tuples(month_days(), months, weekdays()).map(" ".join)


def times() -> st.SearchStrategy[str]:
    hours = st.one_of(st.integers(0, 4).map(str), fields(0, 23))
    return st.tuples(fields(0, 59), hours).map(" ".join)


def daily() -> st.SearchStrategy[str]:
    """Return expressions that fire on most days, so that a span of a day or two contains them."""
    days = st.sampled_from(
        [
            *("* * *", "* * *", "1-28 * *", "* * mon-fri", "*/2 * *", "l,1 * sun"),
            *("1-20,lw,l-1 * *", "15w * mon-thu,fril", "* * mon-fri,sat#1,sunl"),
        ]
    )
    return st.tuples(times(), days).map(" ".join)


def hashes(low: int, high: int) -> st.SearchStrategy[str]:
    """Return every form of H in a field."""
    numbers = st.integers(low, high)
    spans = st.one_of(
        st.just("h"), st.tuples(numbers, numbers).map(lambda ends: f"h({ends[0]}-{ends[1]})")
    )
    steps = st.one_of(st.just(""), st.integers(1, high - low + 1).map("/{}".format))
    return st.tuples(spans, steps).map("".join)


def hashed() -> st.SearchStrategy[str]:
    """Return expressions with an H in some fields. Their dates may not exist."""
    parts = [
        st.one_of(fields(low, high), hashes(low, high), st.just("*"))
        for low, high in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    ]
    lists = st.tuples(hashes(0, 59), items(0, 59), hashes(0, 59)).map(",".join)
    return st.tuples(st.one_of(parts[0], lists), *parts[1:]).map(" ".join)
