"""Strategies of cron expressions that are valid, as people write them."""

from hypothesis import strategies as st

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


def items(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    spans = st.tuples(numbers, numbers).map(sorted)
    steps = st.integers(1, high - low + 1)
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
    stars = st.one_of(st.just("*"), st.integers(1, high - low + 1).map(lambda n: f"*/{n}"))
    lists = st.lists(items(low, high, names), min_size=1, max_size=3).map(",".join)
    return st.one_of(stars, lists)


def month_days() -> st.SearchStrategy[str]:
    return st.one_of(st.just("*"), st.just("l"), fields(1, 31), items(1, 31).map("{},l".format))


def weekdays() -> st.SearchStrategy[str]:
    nth = st.tuples(st.sampled_from([*WEEKDAYS, "0", "7"]), st.integers(1, 5))
    nths = st.lists(nth.map(lambda pair: f"{pair[0]}#{pair[1]}"), min_size=1, max_size=2)
    return st.one_of(st.just("*"), fields(0, 6, WEEKDAYS), items(1, 7), nths.map(",".join))


def dates() -> st.SearchStrategy[str]:
    months = st.one_of(st.just("*"), fields(1, 12, MONTHS))
    return st.tuples(month_days(), months, weekdays()).map(" ".join)


def times() -> st.SearchStrategy[str]:
    hours = st.one_of(st.integers(0, 4).map(str), fields(0, 23))
    return st.tuples(fields(0, 59), hours).map(" ".join)


def daily() -> st.SearchStrategy[str]:
    """Expressions that fire on most days, so that a window of a day or two sees them."""
    days = st.sampled_from(["* * *", "* * *", "1-28 * *", "* * mon-fri", "*/2 * *", "l,1 * sun"])
    return st.tuples(times(), days).map(" ".join)
