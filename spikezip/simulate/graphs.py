"""A chunk of steps as a CUDA graph: recorded once for a shape of batch, then replayed.

A pass through a network launches hundreds of kernels. For a few images the host takes far longer to launch them than
the GPU to run them; a replayed graph is one launch. The first chunk of a shape runs plainly, which also compiles what
there is to compile; the next one is recorded. Graphs are kept with the network that they belong to, for further runs.
"""

import weakref
from collections import OrderedDict
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from spikezip.execution import executing
from spikezip.simulate.outputs import map_tensors, tensors_in

if TYPE_CHECKING:
    from spikezip.simulate.folded import FoldedEngine

MOST = 6  # graphs of a network: each keeps the memory that its chunk needs
_SEEN = 256  # shapes of batches that are remembered
_ALIGNED = 256  # bytes at which a tracer begins
_SPARE = 1.5  # times what a chunk took when it ran plainly: a graph's memory is a pool of its own, with gaps of its own
# The share of sites and samples that fire nothing from which on kernels look for them: a guess. Where next to none
# rests, they were 6 to 12 % slower; where most do, 4 to 16 % faster (`benchmarks/resting.py`).
RESTS = 0.3
# Of the largest layer and step, with all that lives beside it: a guess on the safe side.
BYTES_PER_ACTIVATION = 24


class Recording:
    """A recorded chunk: where its inputs are put, where its tracers lie, and what it leaves behind."""

    def __init__(
        self, engine: "FoldedEngine", network: Any, inputs: dict[str, Any], steps: int, like: "Shapes"
    ) -> None:
        self.held = {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}
        self.room, self.tracers = like.make()
        self.stages = dict(like.stages)
        self.owner: Any = lambda: None  # the engine whose tracers lie here
        # What a synapse has derived from its weights is read wherever the graph found it.
        self.derived = [getattr(module, "_parts", None) for module in network.__self__.modules()]
        self.graph = torch.cuda.CUDAGraph()
        runner = type(engine)(engine.settings)
        runner.tracers, runner.stages, runner.in_place = dict(self.tracers), dict(self.stages), True
        runner.resting = engine.resting
        with torch.cuda.graph(self.graph), executing(runner):
            self.output = runner.run(network, self.held, steps)
            self.counts = torch.stack([counts[0] for counts in runner.spike_counts.values()], dim=1)
        self.sites = list(runner.spike_counts)
        self.results = tensors_in(self.output)

    def replay(self, engine: "FoldedEngine", inputs: dict[str, Any]) -> Any:
        """Run the chunk for an engine: its tracers move on, its spikes are counted. Returns the network's output."""
        self._take(engine)
        for name, x in inputs.items():
            if isinstance(x, Tensor):
                self.held[name].copy_(x)
        # Room first: once the tracers have moved on, a run that lacks memory could not go back.
        counts, copies = torch.empty_like(self.counts), iter([torch.empty_like(x) for x in self.results])
        self.graph.replay()
        engine.tracers.update(self.tracers)
        engine.stages.update(self.stages)
        counts.copy_(self.counts)
        for i, name in enumerate(self.sites):
            engine.spike_counts[name].append(counts[:, i])
        return map_tensors(self.output, lambda x: next(copies).copy_(x))

    def _take(self, engine: "FoldedEngine") -> None:
        """Bring an engine's tracers here; another one's that lie here are given to it."""
        owner = self.owner()
        if owner is not None and owner is not engine:
            for name, tracer in self.tracers.items():
                if owner.tracers.get(name) is tracer:
                    owner.tracers[name] = tracer.clone()
        if not engine.tracers:
            self.room.zero_()
        else:
            away = [name for name, tracer in self.tracers.items() if engine.tracers[name] is not tracer]
            for name in away:
                self.tracers[name].copy_(engine.tracers[name])
        self.owner = weakref.ref(engine)


class Shapes:
    """How the tracers of a network lie for a shape of batch, and in which order its sites come."""

    def __init__(self, engine: "FoldedEngine") -> None:
        self.stages = dict(engine.stages)
        self.layouts = {name: (tuple(t.shape), t.stride()) for name, t in engine.tracers.items()}
        self.narrow = all(t.dtype == torch.int8 for t in engine.tracers.values())
        self.device = next(iter(engine.tracers.values())).device
        self.largest = max(t.numel() for t in engine.tracers.values())

    def make(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Tracers of zeros, all in one piece of memory, and that piece."""
        room = torch.zeros(self.room(), dtype=torch.int8, device=self.device)
        starts = accumulate(map(_extent, self.layouts.values()), initial=0)
        placed = zip(self.layouts.items(), starts, strict=False)
        return room, {name: room.as_strided(*layout, start) for (name, layout), start in placed}

    def room(self) -> int:
        """Bytes of all tracers."""
        return sum(map(_extent, self.layouts.values()))


def _extent(layout: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    """Bytes from one tracer to the next."""
    size = max((n * step for n, step in zip(*layout, strict=True)), default=1)
    return -(-size // _ALIGNED) * _ALIGNED


class Memory:
    """What is remembered of a network: shapes that were seen, and graphs for some of them."""

    rests = False  # whether much of the network was at rest for long in the last run

    def __init__(self) -> None:
        self.shapes: OrderedDict[Any, Shapes] = OrderedDict()
        self.seen: dict[Any, int] = {}  # chunks that ran plainly, and the bytes that they took
        self.refused: dict[Any, str] = {}  # what cannot be recorded, and why: a model may wait for the GPU
        self.recordings: OrderedDict[Any, Recording] = OrderedDict()
        self.weights: Any = None

    def current(self, network: nn.Module) -> None:
        """Forget graphs of weights that have been changed or moved since."""
        weights = tuple((t.data_ptr(), _version(t)) for t in (*network.parameters(), *network.buffers()))
        if weights != self.weights:
            self.weights = weights
            self.seen.clear()
            self.recordings.clear()

    def saw(self, batch: Any, key: Any, shapes: Shapes, taken: int) -> None:
        self.shapes[batch] = shapes
        self.seen[key] = taken
        if len(self.shapes) > _SEEN:
            oldest, _ = self.shapes.popitem(last=False)
            self.seen = {each: taken for each, taken in self.seen.items() if each[:-2] != oldest}


_memories: "weakref.WeakKeyDictionary[nn.Module, Memory]" = weakref.WeakKeyDictionary()


def advance(engine: "FoldedEngine", network: Any, inputs: dict[str, Any], steps: int) -> Any:
    """A chunk of an engine, from a graph where there is one, or where it is time to record it."""
    model = getattr(network, "__self__", None)
    if not isinstance(model, nn.Module) or not _may_record(engine, inputs):
        return engine.run(network, inputs, steps)
    memory = _memories.setdefault(model, Memory())
    memory.current(model)
    batch = _key(engine, inputs)
    engine.resting = memory.rests
    key = (*batch, memory.rests, steps)
    if key in memory.recordings:
        memory.recordings.move_to_end(key)
    elif key in memory.seen and batch in memory.shapes and memory.shapes[batch].narrow and key not in memory.refused:
        while len(memory.recordings) >= MOST:
            memory.recordings.popitem(last=False)
        try:
            _want_room(memory.shapes[batch], memory.seen[key])
            memory.recordings[key] = Recording(engine, network, inputs, steps, memory.shapes[batch])
        except RuntimeError as error:  # something waits for the GPU, or the memory is short: without a graph, then
            memory.refused[key] = str(error)
    if key in memory.recordings:
        return memory.recordings[key].replay(engine, inputs)
    before = _memory_of(inputs)
    output = engine.run(network, inputs, steps)
    shapes = Shapes(engine)
    memory.saw(batch, key, shapes, _taken(before, _memory_of(inputs), shapes.largest * steps))
    return output


def largest_layer(engine: "FoldedEngine", network: Any, inputs: dict[str, Any]) -> int | None:
    """How many neurons the largest layer has for such a batch, if one was seen before."""
    memory = _memories.get(getattr(network, "__self__", None))  # type: ignore[arg-type]  # of None there is none
    shapes = None if memory is None else memory.shapes.get(_key(engine, inputs))
    return None if shapes is None else shapes.largest


def note_rest(network: Any, counts: Tensor) -> None:
    """Remember of a run how much of the network was at rest in its later half: spikes `[steps, sites, B]`.

    There are kernels that leave out what rests. They are a little slower where nothing does, so a network gets them
    once it has been seen to rest.
    """
    memory = _memories.get(getattr(network, "__self__", None))  # type: ignore[arg-type]  # of None there is none
    if memory is not None and counts.numel():
        memory.rests = float((counts == 0).float().mean()) >= RESTS


def forget() -> None:
    """Give back the memory of all graphs."""
    for memory in _memories.values():
        memory.recordings.clear()
        memory.refused.clear()  # there may be room now


class Allocated(NamedTuple):
    """Bytes that torch holds on a GPU: now, and at the peak so far."""

    now: int
    peak: int


def _memory_of(inputs: dict[str, Any]) -> Allocated:
    device = next((x.device for x in inputs.values() if isinstance(x, Tensor) and x.is_cuda), None)
    if device is None:
        return Allocated(0, 0)
    return Allocated(torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device))


def _taken(before: Allocated, after: Allocated, activations: int) -> int:
    """Bytes that a chunk took at most.

    Peaks are the user's to reset. Where the chunk has made a new one, that is its own; else it stayed below the old.

    Example:
        >>> _taken(Allocated(100, 100), Allocated(150, 400), activations=50)
        300
        >>> _taken(Allocated(100, 9000), Allocated(150, 9000), activations=50)
        1200
    """
    return min(after.peak - before.now, BYTES_PER_ACTIVATION * activations)


def _want_room(shapes: Shapes, taken: int) -> None:
    """Raise torch.OutOfMemoryError where a recording might not find its memory.

    A recording that fails midway leaves torch's allocator in a state that ends the process, so it must not fail. It can
    use nothing of what torch keeps for later: that is given back before, and what it will need taken for a moment.
    """
    if shapes.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.empty(int(_SPARE * taken) + shapes.room(), dtype=torch.int8, device=shapes.device)
        torch.cuda.empty_cache()


def _may_record(engine: "FoldedEngine", inputs: dict[str, Any]) -> bool:
    """Whether all steps of a run are alike, and nothing of them is looked at one by one."""
    settings = engine.settings
    plain = settings.ramp == 1 and not settings.stagger and not settings.record and not settings.count_neurons
    return plain and any(isinstance(x, Tensor) and x.is_cuda for x in inputs.values())


def _key(engine: "FoldedEngine", inputs: dict[str, Any]) -> tuple[Any, ...]:
    shapes = tuple(
        (name, x.shape, x.dtype, x.device) if isinstance(x, Tensor) else (name, repr(x)) for name, x in inputs.items()
    )
    # Tensors of inference mode cannot be written to outside of it.
    return engine.settings.batch, engine.settings.max_spike, torch.is_inference_mode_enabled(), shapes


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
