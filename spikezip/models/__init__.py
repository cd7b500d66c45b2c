"""Where a float model enters: site tables (data, not code), the attention function, coverage."""

from spikezip.models.coverage import Coverage, coverage
from spikezip.models.tables import TABLES, find_table

__all__ = ["TABLES", "Coverage", "coverage", "find_table"]
