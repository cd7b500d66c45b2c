"""The page of results, made from metrics files: `spikezip results`.

`add_run` and `add_file` put metrics into a folder; `make` turns the folder into the page.
"""

from spikezip.results.adding import add_attention, add_file, add_measurement, add_run
from spikezip.results.page import Page, make

__all__ = ["Page", "add_attention", "add_file", "add_measurement", "add_run", "make"]
