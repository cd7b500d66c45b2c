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
            child = module._modules[part] = nn.Module()
        module = child
    # Past the checks of `register_parameter`: models may use names that a module has for something else, such as `to`.
    if parameter:
        module._parameters[leaf] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
    else:
        module._buffers[leaf] = tensor


def locate(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a tensor, and the tensor's name there: found once, it can be read quickly.

    Example:
        >>> locate(nn.Sequential(nn.Linear(2, 2)), "0.weight")[1]
        'weight'
    """
    *path, leaf = name.split(".")
    module = root
    for part in path:
        child = module._modules[part]
        assert child is not None
        module = child
    return module, leaf


def tensor_at(module: nn.Module, leaf: str) -> Tensor:
    """The parameter or buffer that a module holds under a name.

    Example:
        >>> tensor_at(nn.Linear(2, 3), "bias").shape
        torch.Size([3])
    """
    found: Tensor | None = module._parameters.get(leaf)
    found = module._buffers[leaf] if found is None else found
    assert found is not None
    return found


def tensors_in(root: nn.Module) -> Mapping[str, Tensor]:
    """All parameters and buffers of a module by name, as they are now."""
    return {**dict(root.named_parameters(remove_duplicate=False)), **dict(root.named_buffers(remove_duplicate=False))}
