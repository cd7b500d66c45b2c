"""A training step as a CUDA graph: recorded once per shape of a batch, then replayed.

A quantized network launches a few small kernels per site. On a fast GPU the host takes longer to launch them than the
GPU to run them; a replayed graph is one launch. What is recorded must not wait for the GPU: float text models, which
look at their masks to see whether anything is padded, get an attention that does not (`attention_without_waiting`).
The same keeps attention over images fused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

SDPA = "sdpa_without_waiting"
MOST = 16  # graphs: each keeps the memory of its gradients; what lies between they share


class GraphedStep:
    """A training step up to its gradients: loss and backward pass, replayed from a graph where one was recorded.

    `loss` takes a batch and returns what is to be minimised; it must not wait for the GPU. The first batch of a shape
    is recorded; beyond `MOST` shapes, batches run without a graph. The loss and the gradients lie in memory that the
    next batch of that shape writes to again.
    """

    def __init__(self, model: nn.Module, loss: Callable[[dict[str, Tensor]], Tensor]) -> None:
        self.loss = loss
        self.model = model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.graphs: dict[Any, tuple[Any, dict[str, Tensor], Tensor, list[Tensor | None]]] = {}
        self.pool: Any = None

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """The loss; every parameter then has its gradient."""
        key = _shapes(inputs)
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                return self._run(inputs)
            self.graphs[key] = self._record(inputs)
        graph, held, loss, grads = self.graphs[key]
        for name, tensor in inputs.items():
            held[name].copy_(tensor)
        graph.replay()
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        return loss

    def _run(self, inputs: dict[str, Tensor]) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        # A weight cast to bfloat16 before the recording would be recorded as it was then.
        torch.clear_autocast_cache()
        loss = self.loss(inputs)
        loss.backward()
        return loss.detach()

    def _record(self, inputs: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], Tensor, list[Tensor | None]]:
        held = {name: tensor.clone() for name, tensor in inputs.items()}
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        with without_a_trace(self.model):
            graph, loss = _recorded(lambda: self._run(held), self.pool)
        return graph, held, loss, [parameter.grad for parameter in self.parameters]


class GraphedFunction:
    """A function of tensors, without gradients, replayed from a graph: the augmentation of a batch.

    Random numbers go on from replay to replay, as they would without a graph. What it returns lies in memory that the
    next batch of that shape writes to again.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function = function
        self.graphs: dict[Any, tuple[Any, dict[str, Tensor], tuple[Tensor, ...]]] = {}

    @torch.no_grad()
    def __call__(self, **inputs: Tensor) -> tuple[Tensor, ...]:
        key = _shapes(inputs)
        if key not in self.graphs:
            if len(self.graphs) >= MOST:
                return self.function(**inputs)
            held = {name: tensor.clone() for name, tensor in inputs.items()}
            with without_a_trace():
                graph, results = _recorded(lambda: self.function(**held), None)
            self.graphs[key] = graph, held, results
        graph, held, results = self.graphs[key]
        for name, tensor in inputs.items():
            held[name].copy_(tensor)
        graph.replay()
        return results


def _shapes(inputs: dict[str, Tensor]) -> Any:
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items())


@contextmanager
def without_a_trace(model: nn.Module | None = None) -> Iterator[None]:
    """What runs inside the block draws no random number from what follows, and leaves the model's buffers as they were.

    The runs before a recording are no steps of a training: with them, dropout and augmentation would go on with other
    numbers than without a graph, a resumed training with others than one that was not stopped, and running means (as
    those of a batch normalisation) would count the first batch four times.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> _ = torch.manual_seed(0)
        >>> first = torch.rand(1)
        >>> _ = torch.manual_seed(0)
        >>> with without_a_trace(norm):
        ...     _ = norm(torch.rand(4, 2))
        >>> torch.equal(torch.rand(1), first), norm.running_mean.tolist()
        (True, [0.0, 0.0])
    """
    kept = [] if model is None else [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        yield
    for buffer, before in kept:
        buffer.copy_(before)


def _recorded(run: Callable[[], Any], pool: Any) -> tuple[Any, Any]:
    """A graph of what `run` does on the GPU, and what it returned."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # a few runs first: libraries set themselves up, kernels are compiled
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = run()
    torch.clear_autocast_cache()  # what it holds now lies in the graph's memory
    return graph, result


@contextmanager
def attention_without_waiting(*models: Any) -> Iterator[None]:
    """Inside the block float models that use SDPA pass the mask they are given, and never look whether they need to.

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
    elif kwargs.get("allow_is_bidirectional_skip") and kwargs.get("local_size") is None:
        return None  # transformers makes a mask of ones while a graph is recorded, and no fused attention takes it
    seen: Tensor | None = sdpa_mask(*args, **kwargs)
    return seen


AttentionInterface.register(SDPA, sdpa_attention_forward)
AttentionMaskInterface.register(SDPA, _mask)
