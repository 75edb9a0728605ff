"""The buckets of lags and of run times, by which the rollup counts runs."""

from collections.abc import Sequence

#: The upper bounds in seconds. A last bucket has the greater values.
LAG_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)
RUN_TIME_BOUNDS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600, 14_400)


def names_of(bounds: Sequence[float]) -> Sequence[str]:
    """Return the names of the buckets with these upper bounds."""
    return [*(f"{bound:g}" for bound in bounds), "inf"]
