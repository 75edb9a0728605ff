"""The types that users see are those that we promise."""

from pathlib import Path

from mypy import api


def test_the_public_api_is_typed_as_an_application_uses_it(tmp_path: Path) -> None:
    config = Path(__file__).parents[2] / "pyproject.toml"
    file = Path(__file__).with_name("public_api.py")

    report, errors, status = api.run(
        ["--strict", f"--config-file={config}", f"--cache-dir={tmp_path}", str(file)],
    )

    assert (status, errors) == (0, ""), report
