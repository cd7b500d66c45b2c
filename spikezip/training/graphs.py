"""A model's forward and backward pass as CUDA graphs: recorded once per shape of a batch, then replayed.

A quantized network launches a few small kernels per site. On a fast GPU the host takes longer to launch them than the
GPU to run them; a replayed graph is one launch.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

MOST = 16  # graphs: each keeps the memory of a forward pass


class _Logits(nn.Module):
    """A model as a function of plain tensors, which is what can be recorded."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], context: Callable[[], AbstractContextManager[Any]]):
        super().__init__()
        self.model, self.names, self.context = model, names, context

    def forward(self, *tensors: Tensor) -> Tensor:
        # A weight cast to bfloat16 before the recording would be recorded as it was then.
        torch.clear_autocast_cache()
        with self.context():
            logits: Tensor = self.model(**dict(zip(self.names, tensors, strict=True))).logits
        return logits


class GraphedForward:
    """Logits of a model in training, with gradients for its parameters, replayed from a graph where one was recorded.

    The first batch of a shape is recorded; beyond `MOST` shapes, batches run without a graph. Gradients lie in memory
    that the next batch of that shape writes to again: they must be used, or copied, before it comes.
    """

    def __init__(self, model: nn.Module, context: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.model, self.context = model, context
        self.graphs: dict[Any, Any] = {}

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        names = tuple(inputs)
        tensors = tuple(inputs.values())
        key = tuple((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items())
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                return _Logits(self.model, names, self.context)(*tensors)
            self.graphs[key] = self._record(names, tensors)
        logits: Tensor = self.graphs[key](*tensors)
        return logits

    def _record(self, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> Any:
        module = _Logits(self.model, names, self.context).train()
        samples = tuple(tensor.clone() for tensor in tensors)
        recorded = torch.cuda.make_graphed_callables(module, samples, allow_unused_input=True)
        torch.clear_autocast_cache()  # what it holds now lies in the graph's memory
        return recorded
