"""A file is written completely, or not at all."""

import pytest

from celery_dynbeat.cli.export import replacing


def test_the_file_is_replaced_at_the_end_of_the_block(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path):
    with replacing(path) as file:
        file.write(b"half")
        raise OSError("full")


def test_an_error_in_the_block_leaves_the_file_unchanged(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    with pytest.raises(OSError, match="full"):
        write_half(path)

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
