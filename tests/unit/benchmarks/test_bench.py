import pytest
from rich.console import Console

from benchmarks.bench import Bench
from benchmarks.figures import Results, at_most
from benchmarks.services import Services


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "must"), (0.4, "")])
def test_bounds_apply_to_the_full_size_only(scale, verdict):
    results = Results()
    bench = Bench(Services("postgresql", "redis"), scale=scale, results=results, console=Console())

    bounds = {"must": at_most(2), "aim": at_most(1)}
    bench.report("lag", "p99", value=3, unit="ms", compared=1.5, **bounds)

    assert [figure.verdict for figure in results.figures] == [verdict]
