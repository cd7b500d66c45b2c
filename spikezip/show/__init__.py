"""Pictures and reports from numbers. It needs the extra `show`; each function imports what it draws with."""

from spikezip.show import curves
from spikezip.show.attention import attention_maps
from spikezip.show.attention_document import AttentionDocument
from spikezip.show.chart import Chart, Heat
from spikezip.show.feature_map import attention_figure
from spikezip.show.looking import look
from spikezip.show.neuron import neuron_figure, trace_neurons
from spikezip.show.raster import raster
from spikezip.show.report import report
from spikezip.show.static import save_figure
from spikezip.show.story import Story, tell

__all__ = [
    "AttentionDocument",
    "Chart",
    "Heat",
    "Story",
    "attention_figure",
    "attention_maps",
    "curves",
    "look",
    "neuron_figure",
    "raster",
    "report",
    "save_figure",
    "tell",
    "trace_neurons",
]
