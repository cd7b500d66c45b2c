"""Embedding tables on an integer grid: every row has its own scale, so a looked-up row can be put on it alone."""

from collections.abc import Iterable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from spikezip.errors import ConfigError
from spikezip.ops import grid
from spikezip.quant.lsq import on_grid
from spikezip.quant.synapse import QuantSynapse


class QuantEmbedding(nn.Embedding):
    """`nn.Embedding` of a quantized network: the rows on their grid, in `train()` and `eval()` alike.

    Gradients go straight through to the table. Only the rows that are looked up are computed; they equal the rows
    of the whole table on its grid, because a row's scale depends on that row alone.

    Example:
        >>> import torch
        >>> table = nn.Embedding.from_pretrained(torch.tensor([[1.27, 0.004], [0.0, 0.0]]), freeze=False)
        >>> adopt_embedding(table, "words", bits=8)
        >>> table(torch.tensor([0]))
        tensor([[1.2700, 0.0000]], grad_fn=<ViewBackward0>)
    """

    name: str
    embedding_bits: int

    def grid_weight(self) -> tuple[Tensor, Tensor]:
        """The table as integers, and their scale per row."""
        return grid.weight_grid(self.weight, self.embedding_bits)

    def forward(self, input: Tensor) -> Tensor:
        rows = F.embedding(
            input, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq, sparse=self.sparse
        )
        return on_grid(rows.reshape(-1, self.embedding_dim), self.embedding_bits).view(rows.shape)


def adopt_embedding(table: Any, name: str, bits: int) -> None:
    """Make an `nn.Embedding` a table of a quantized network.

    Example:
        >>> adopt_embedding(nn.Embedding(2, 3, max_norm=1.0), "words", bits=8)
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: embedding words: max_norm rescales rows as they are looked up, so its table ...
    """
    if type(table).forward is not nn.Embedding.forward:
        raise ConfigError(
            f"embedding {name} is a {type(table).__name__} with a forward of its own: "
            "its table has no grid; leave embedding_bits=None"
        )
    if table.max_norm is not None:
        raise ConfigError(
            f"embedding {name}: max_norm rescales rows as they are looked up, so its table has no fixed grid; "
            "leave embedding_bits=None, or set max_norm=None"
        )
    table.__class__ = QuantEmbedding
    table.name, table.embedding_bits = name, bits


def adopt_embeddings(model: nn.Module, bits: int, constants: Iterable[str]) -> None:
    """Adopt every table of a model, except inside modules that compute constants.

    A table that is an output layer as well (tied weights) is one tensor, and lies on one grid: both need equal bits.
    """
    within = tuple(f"{name}." for name in constants)
    tables = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and not name.startswith(within)
    }
    if not tables:
        raise ConfigError(f"embedding_bits={bits}: {type(model).__name__} has no embedding table; leave it None")
    products = {id(m.weight): m for m in model.modules() if isinstance(m, QuantSynapse)}
    for name, table in tables.items():
        product = products.get(id(table.weight))
        if product is not None and product.weight_bits != bits:
            raise ConfigError(
                f"embedding_bits={bits}, weight_bits={product.weight_bits}: {name} and {product.name} are one table, "
                f"and one table lies on one grid; set embedding_bits to {product.weight_bits}"
            )
        adopt_embedding(table, name, bits)
