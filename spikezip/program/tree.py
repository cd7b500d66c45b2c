"""Tensors under dotted names in a module, as `nn.Module` has them: one nested module for each part of a name."""

from collections.abc import Mapping

from torch import Tensor, nn


def attach(root: nn.Module, name: str, tensor: Tensor, *, parameter: bool) -> None:
    """Register a tensor under a dotted name, as a parameter or as a buffer.

    Example:
        >>> import torch
        >>> root = nn.Module()
        >>> attach(root, "layers.0.weight", torch.zeros(2), parameter=True)
        >>> [name for name, _ in root.named_parameters()]
        ['layers.0.weight']
    """
    *path, leaf = name.split(".")
    module = root
    for part in path:
        child = module._modules.get(part)
        if child is None:
            child = nn.Module()
            module.add_module(part, child)
        module = child
    if parameter:
        module.register_parameter(leaf, tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor))
    else:
        module.register_buffer(leaf, tensor)


def locate(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a tensor, and the tensor's name there: found once, it can be read quickly.

    Example:
        >>> locate(nn.Sequential(nn.Linear(2, 2)), "0.weight")[1]
        'weight'
    """
    path, _, leaf = name.rpartition(".")
    return root.get_submodule(path), leaf


def tensors_in(root: nn.Module) -> Mapping[str, Tensor]:
    """All parameters and buffers of a module by name, as they are now."""
    return {**dict(root.named_parameters(remove_duplicate=False)), **dict(root.named_buffers(remove_duplicate=False))}
