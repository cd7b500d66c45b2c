"""Tapes of earlier runs, kept with the network that they belong to.

A tape is a program for inputs of one shape. Writing it down takes several times as long as a step of it does, so that
a run on a single image, or on a few, is shorter if it finds one. A tape serves one engine at a time.
"""

import weakref
from collections.abc import Callable
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.simulate.nodes import Linear, Population
from spikezip.simulate.tape import Tape

MOST_BYTES = 1 << 27  # that the tapes of a network may hold together: there is little to gain for large batches
_OBJECTS = 1 << 20  # bytes that a tape takes beside its tensors, roughly
_MISSES = 3  # so many times in a row it was no use to try a tape; then it goes

_SIMPLE = frozenset((bool, int, float, str, type(None)))


class Kept:
    """A tape, what it is for, and the bytes that it holds."""

    def __init__(self, tape: Tape, key: Any) -> None:
        self.tape, self.key, self.size, self.misses = tape, key, _size(tape), 0

    def claim(self, engine: Any) -> bool:
        """Let an engine have it, if no other one does."""
        owner = self.tape.owner
        if owner is not None and owner() is not None:
            return False
        self.tape.owner = weakref.ref(engine)
        return True


class Shelf:
    """The tapes of a network, the one last played at the end, and what the network is like."""

    def __init__(self) -> None:
        self.network: Any = None
        self.tapes: list[Kept] = []

    def bring_up_to_date(self, network: Any) -> None:
        """Throw tapes away if the network has changed since."""
        if network != self.network:
            self.network, self.tapes = network, []

    def add(self, kept: Kept) -> None:
        self.tapes.append(kept)
        while sum(each.size for each in self.tapes) > MOST_BYTES:
            del self.tapes[0]

    def tried(self, kept: Kept, fits: bool) -> None:
        """An engine has tried a tape; if it was no use, others may."""
        kept.misses = 0 if fits else kept.misses + 1
        if not fits:
            kept.tape.owner = None
        if kept in self.tapes:  # it may have been thrown away in the meantime
            self.tapes.remove(kept)
            if kept.misses < _MISSES:
                self.tapes.append(kept)


_shelves: "weakref.WeakKeyDictionary[nn.Module, Shelf]" = weakref.WeakKeyDictionary()
_lock = RLock()  # for shelves, and for who owns a tape


def take(engine: Any, network: Any, inputs: dict[str, Any], fits: Callable[[Tape], bool]) -> Tape | None:
    """A tape of the network for such inputs, as the engine's own; `fits` makes it ready and says if it is of use."""
    model, key = getattr(network, "__self__", None), _key(engine, inputs)
    if key is None or not isinstance(model, nn.Module):
        return None
    now = _nature(model)
    with _lock:
        shelf = _shelves.setdefault(model, Shelf())
        shelf.bring_up_to_date(now)
        candidates = [kept for kept in reversed(shelf.tapes) if kept.key == key]
    for kept in candidates:
        with _lock:
            claimed = kept.claim(engine)
        if claimed:
            found = False
            try:
                found = fits(kept.tape)
            finally:
                with _lock:
                    shelf.tried(kept, found)
            if found:
                return kept.tape
    return None


def keep(tape: Tape, engine: Any, network: Any, inputs: dict[str, Any]) -> None:
    """Keep a tape that an engine has recorded and plays, for those that come after it."""
    tape.owner = weakref.ref(engine)
    model, key = getattr(network, "__self__", None), _key(engine, inputs)
    if key is None or not isinstance(model, nn.Module) or tape.entry.once is not None:
        return
    kept, now = Kept(tape, key), _nature(model)
    with _lock:
        shelf = _shelves.get(model)
        if shelf is not None and now is not None and shelf.network == now and kept.size <= MOST_BYTES:
            shelf.add(kept)


def forget() -> None:
    """Give back the memory of all tapes that are kept."""
    with _lock:
        for shelf in _shelves.values():
            shelf.tapes = []


def _key(engine: Any, inputs: dict[str, Any]) -> Any:
    """What a tape is for: kinds of inputs, and what else a pass depends on. None if that cannot be told."""
    kinds: list[Any] = []
    seen: dict[int, int] = {}  # the same tensor twice is another case than two that are alike
    for name, x in inputs.items():
        if type(x) is Tensor:
            place = seen.setdefault(id(x), len(seen))
            kinds.append((name, x.shape, x.stride(), x.dtype, x.device, x.is_inference(), place))
        elif type(x) in _SIMPLE:
            kinds.append((name, type(x), x))
        else:
            return None
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype())
    autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
    return type(engine), engine.settings.batch, engine.settings.max_spike, modes, autocast, tuple(kinds)


def _nature(model: nn.Module) -> Any:
    """All of a network that its forward pass may depend on, as far as it can be told; None if it cannot.

    Parameters and buffers go by address and version; settings of modules and of their configurations by value.
    """
    found: list[Any] = []
    configs: dict[int, Any] = {}
    for module in model.modules():
        own = module.__dict__
        tensors = [x for x in (*own["_parameters"].values(), *own["_buffers"].values()) if x is not None]
        if any(x.is_inference() for x in tensors):  # without versions
            return None
        found.append((id(module), id(type(module)), id(own.get("forward"))))
        found += [(x.data_ptr(), x._version) for x in tensors]
        found += [(name, x) for name, x in own.items() if type(x) in _SIMPLE and name[0] != "_"]
        if "config" in own:
            configs[id(own["config"])] = own["config"]
    for config in configs.values():
        found.append(dict(getattr(config, "__dict__", {})))
    return found


def _size(tape: Tape) -> int:
    """Bytes that a tape holds."""
    held = [x for x in tape.cells if isinstance(x, Tensor)]
    for group in tape.groups:
        for node in group.nodes:
            if isinstance(node, Population):
                held += [x for x in (node.codes, node.values) if x is not None]
            elif isinstance(node, Linear) and node.room is not None:
                held.append(node.room)
    sums = sum(group.stride.size for group in tape.groups if group.stride is not None)
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    return _OBJECTS + sums + sum(storages.values())
