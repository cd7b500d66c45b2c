"""A model's forward and backward pass as CUDA graphs: recorded once per shape of a batch, then replayed.

A quantized network launches a few small kernels per site. On a fast GPU the host takes longer to launch them than the
GPU to run them; a replayed graph is one launch. What is recorded must not wait for the GPU: float text models, which
look at their masks to see whether anything is padded, get an attention that does not (`attention_without_waiting`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

SDPA = "sdpa_without_waiting"
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


class GraphedAnswers:
    """Logits of a frozen model, replayed from a graph: a teacher's.

    They lie in memory that the next batch of that shape writes to again.
    """

    def __init__(self, model: nn.Module, context: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self.model, self.context = model, context
        self.graphs: dict[Any, tuple[Any, dict[str, Tensor], Tensor]] = {}

    @torch.no_grad()
    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        key = tuple((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items())
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                return self._logits(inputs)
            self.graphs[key] = self._record(inputs)
        graph, held, logits = self.graphs[key]
        for name, tensor in inputs.items():
            held[name].copy_(tensor)
        graph.replay()
        return logits

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        torch.clear_autocast_cache()
        with self.context():
            logits: Tensor = self.model(**inputs).logits
        return logits

    def _record(self, inputs: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], Tensor]:
        held = {name: tensor.clone() for name, tensor in inputs.items()}
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # a few runs first: libraries set themselves up, kernels are compiled
            for _ in range(3):
                self._logits(held)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._logits(held)
        torch.clear_autocast_cache()  # what it holds now lies in the graph's memory
        return graph, held, logits


@contextmanager
def attention_without_waiting(*models: Any) -> Iterator[None]:
    """Inside the block float models that use SDPA always pass their mask, and never look whether they need to.

    Example:
        >>> import transformers
        >>> bert = transformers.BertModel(transformers.BertConfig(hidden_size=8, num_hidden_layers=1,
        ...     num_attention_heads=1, intermediate_size=8))
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> plain = bert.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        >>> with attention_without_waiting(bert):
        ...     found = bert(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        >>> torch.allclose(found, plain, atol=1e-6), bert.config._attn_implementation  # another kernel, other last bits
        (True, 'sdpa')
    """
    changed = [m for m in models if getattr(getattr(m, "config", None), "_attn_implementation", None) == "sdpa"]
    for model in changed:
        model.set_attn_implementation(SDPA)
    try:
        yield
    finally:
        for model in changed:
            model.set_attn_implementation("sdpa")


def _mask(*args: Any, **kwargs: Any) -> Tensor | None:
    if kwargs.get("attention_mask") is not None:
        kwargs["allow_is_bidirectional_skip"] = kwargs["allow_is_causal_skip"] = False
    seen: Tensor | None = sdpa_mask(*args, **kwargs)
    return seen


AttentionInterface.register(SDPA, sdpa_attention_forward)
AttentionMaskInterface.register(SDPA, _mask)
