"""The command line: one small file per verb. It needs the extra `cli`; the library does not."""

import sys
from importlib.util import find_spec

NEEDS = ("typer", "rich")


def main() -> None:
    """What the command `spikezip` runs."""
    if any(find_spec(name) is None for name in NEEDS):
        print("the command line needs typer and rich: pip install 'spikezip[cli]'", file=sys.stderr)
        raise SystemExit(2)
    from spikezip.cli.app import app

    app(prog_name="spikezip")
