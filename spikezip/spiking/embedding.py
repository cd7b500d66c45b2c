"""The embedding table of a spiking network: integers and a scale per row, looked up as values."""

import torch.nn.functional as F
from torch import Tensor

from spikezip.spiking.synapse import FrozenWeights


class SpikingEmbedding(FrozenWeights):
    """A frozen table of integers `[rows, width]`. A row's values are its integers times its scale.

    It stands in front of the first site: what it gives enters the network as an input does.

    Example:
        >>> import torch
        >>> codes, scale = torch.tensor([[2.0, -1.0], [4.0, 0.0]]), torch.tensor([0.5, 0.25])
        >>> table = SpikingEmbedding("words", codes, scale, bits=8, padding_idx=None)
        >>> table(torch.tensor([1, 0]))
        tensor([[ 1.0000,  0.0000],
                [ 1.0000, -0.5000]])
        >>> table.codes.dtype
        torch.int8
    """

    scale: Tensor

    def __init__(self, name: str, codes: Tensor, scale: Tensor, bits: int, padding_idx: int | None) -> None:
        super().__init__(name, codes, scale, None, bits)
        self.num_embeddings, self.embedding_dim = codes.shape
        self.padding_idx = padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.codes).to(self.scale.dtype) * self.scale[ids].unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bits={self.weight_bits}"
