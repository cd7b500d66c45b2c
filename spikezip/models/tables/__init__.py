"""One table for each architecture. A new architecture is a new file here and a line in this one."""

from spikezip.models.table import Table
from spikezip.models.tables.beit import BEIT
from spikezip.models.tables.bert import BERT
from spikezip.models.tables.deit import DEIT
from spikezip.models.tables.dinov2 import DINOV2
from spikezip.models.tables.distilbert import DISTILBERT
from spikezip.models.tables.electra import ELECTRA
from spikezip.models.tables.gpt2 import GPT2
from spikezip.models.tables.llama import LLAMA
from spikezip.models.tables.roberta import ROBERTA
from spikezip.models.tables.swin import SWIN
from spikezip.models.tables.vit import VIT

TABLES: tuple[Table, ...] = (
    VIT,
    DEIT,
    DINOV2,
    BEIT,
    SWIN,
    BERT,
    ROBERTA,
    DISTILBERT,
    ELECTRA,
    GPT2,
    LLAMA,
)


def find_table(model_type: str) -> Table | None:
    """The table for a `config.model_type`, if there is one.

    Example:
        >>> find_table("xlm-roberta").entry
        'embeddings.LayerNorm'
    """
    return next((table for table in TABLES if model_type in table.model_types), None)
