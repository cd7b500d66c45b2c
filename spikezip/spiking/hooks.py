"""How a site hangs on a module of the model: as its child, called by a hook on the module's output or input."""

from typing import Any

from torch import nn

SITE_OUT, SITE_IN = "site_out", "site_in"


def attach_hooks(module: nn.Module) -> None:
    """Let the sites among a module's children see its output (`site_out`) and its first input (`site_in`)."""
    if hasattr(module, SITE_OUT):
        module.register_forward_hook(_output_hook)
    if hasattr(module, SITE_IN):
        module.register_forward_pre_hook(_input_hook)


def _output_hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    site = module.get_submodule(SITE_OUT)
    if isinstance(output, tuple):
        return (site(output[0]), *output[1:])
    return site(output)


def _input_hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (module.get_submodule(SITE_IN)(args[0]), *args[1:])
