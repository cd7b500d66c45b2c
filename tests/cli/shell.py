"""The command line, run as a user would."""

from typer.testing import CliRunner, Result

from spikezip.cli.app import app


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def ok(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*args: object) -> str:
    """Exit code 2 and one line on stderr, without a traceback; returns the line."""
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1
    return result.stderr
