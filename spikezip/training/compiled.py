"""Blocks of a float model through torch.compile: fewer passes over memory, within the same CUDA graphs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from spikezip.training.depth import blocks

BACKEND = "inductor"


@contextmanager
def compiled_blocks(model: Any, wanted: bool = True) -> Iterator[None]:
    """Inside the block, training passes through a model's blocks are compiled. Everything else runs as it is.

    Blocks that are alike are compiled once. The model keeps its class and its parameter names, so that graphs and
    checkpoints do not notice; hooks on a block, such as those that leave it out, stay outside of what is compiled.
    Evaluation is not compiled: it is a small part of a training, and its last batch has a shape of its own.

    Example:
        >>> import transformers
        >>> config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=1, image_size=32)
        >>> vit = transformers.ViTModel(config)
        >>> with compiled_blocks(vit):
        ...     ["forward" in vars(layer) for layer in vit.layers]
        [True, True]
        >>> ["forward" in vars(layer) for layer in vit.layers]
        [False, False]
    """
    chosen = [model.get_submodule(name) for name in blocks(model)] if wanted else []
    for block in chosen:
        block.forward = _in_training(block, block.forward)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward  # that of its class again


def _in_training(block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(forward, backend=BACKEND, dynamic=False)

    def run(*args: Any, **kwargs: Any) -> Any:
        return (compiled if block.training and torch.is_grad_enabled() else forward)(*args, **kwargs)

    return run
