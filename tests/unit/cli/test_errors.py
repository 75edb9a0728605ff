"""Each error that an operator can repair is one line and status 1, without a password."""

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat import Dynbeat
from celery_dynbeat.cli import dynbeat as group
from celery_dynbeat.cli.base.errors import reporting_errors


def run(*arguments, has_dynbeat=True, **config):
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(config)
    made = Dynbeat(app) if has_dynbeat else None
    result = CliRunner().invoke(group, arguments, obj=CLIContext(app, no_color=True, workdir=None))
    if made is not None and "database" in vars(made.context):
        made.context.database.dispose()
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dynbeat_database_url": "sqlite:////nowhere/x.sqlite3"}, "folder '/nowhere'"),
        ({"dynbeat_database_url": "nosuch://u:s3cret@h/x"}, "nosuch"),
        ({"dynbeat_database_url": "no url with s3cret"}, "dynbeat_database_url"),
        ({"dynbeat_database_url": "oracle://u:s3cret@h/x"}, "oracle"),
        ({"dynbeat_pol_interval": 3}, "did you mean dynbeat_poll_interval?"),
        ({"dynbeat_max_payload_bytes": "x"}, "dynbeat_max_payload_bytes = 'x'"),
        (
            {"dynbeat_create_tables": False, "dynbeat_database_url": "sqlite://"},
            "celery -A your_app dynbeat schema upgrade",
        ),
        ({"has_dynbeat": False}, "the module that -A names"),
    ],
)
def test_a_broken_configuration_is_one_line_without_the_password(config, words):
    result = run("list", **config)

    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "s3cret" not in result.stderr


def test_a_bug_of_this_package_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), reporting_errors(None, as_json=False):
        _ = 1 / 0
