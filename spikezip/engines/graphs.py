"""A chunk of steps as a CUDA graph: recorded once for a shape of batch, then replayed.

A pass through a network launches hundreds of kernels. For a few images the host takes far longer to launch them than
the GPU to run them; a replayed graph is one launch. The first chunk of a shape runs kernel by kernel, which also
compiles what there is to compile; the next one is recorded. Graphs are kept with the program that they belong to, for
further runs.
"""

import copy
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spikezip.engines.engine import Recording, State
from spikezip.engines.fuse import Attention
from spikezip.engines.walk import Folding
from spikezip.program.nodes import Program, Weight

if TYPE_CHECKING:
    from spikezip.engines.folded import FoldedEngine

MOST = 6  # graphs of a network: each keeps the memory that its chunk needs
_SEEN = 256  # shapes of batches that are remembered
_ALIGNED = 256  # bytes at which a tracer begins
_SPARE = 1.5  # times what a chunk took when it ran plainly: a graph's memory is a pool of its own, with gaps of its own
# Of the largest layer and step, with all that lives beside it: a guess on the safe side.
_BYTES_PER_ACTIVATION = 24


class Memory:
    """What is remembered of a program: chunks that ran plainly, graphs of some, and why others have none."""

    def __init__(self, program: Program) -> None:
        self.seen: dict[Any, Shapes] = {}
        self.graphs: OrderedDict[Any, Graph] = OrderedDict()
        self.refused: dict[Any, str] = {}
        self.tensors: tuple[Tensor, ...] = ()
        self.bytes: tuple[Tensor, ...] = ()  # of these tensors
        self.content: Tensor | None = None  # a copy of them, as they were in the run before

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Forget graphs of weights that have been changed or moved since.

        The weights themselves are compared: a change through `.data` leaves no other trace.
        """
        now = tuple(tensors.values())
        same = len(now) == len(self.tensors) and all(
            a is b and a.data_ptr() == c.data_ptr() for a, b, c in zip(now, self.tensors, self.bytes, strict=True)
        )
        if not same:
            self.tensors, self.content = now, None
            self.bytes = tuple(t.detach().reshape(-1).view(torch.uint8) for t in now)
        content = torch.cat(self.bytes)
        if self.content is None or not torch.equal(content, self.content):
            self.content = content
            self.seen.clear()
            self.graphs.clear()


def memory_of(program: Program) -> Memory:
    """The graphs of a program, which live as long as it does."""
    return program.derived(Memory)


def forget(program: Program) -> None:
    """Release the memory of a program's graphs."""
    memory = memory_of(program)
    memory.graphs.clear()
    memory.refused.clear()  # there may be room now


def advance(engine: "FoldedEngine", steps: int) -> dict[str, Any]:
    """A chunk of an engine, from a graph where there is one, or where it is time to record it."""
    if not engine.use_graphs or not _on_cuda(engine):
        return engine.chunk(steps)
    engine.graph_refused = _why_not(engine)
    if engine.graph_refused:
        return engine.chunk(steps)
    memory, key = memory_of(engine.program), (steps, *_key(engine))
    if not engine.weights_checked:
        memory.check(engine.network.tensors)
        engine.weights_checked = True
    if key in memory.graphs:
        memory.graphs.move_to_end(key)
    elif key in memory.seen and key not in memory.refused:
        while len(memory.graphs) >= MOST:
            memory.graphs.popitem(last=False)
        try:
            memory.graphs[key] = Graph(engine, steps, memory.seen[key])
        except RuntimeError as error:  # something waits for the GPU, or the memory is short: without a graph, then
            memory.refused[key] = str(error) or type(error).__name__
    if key in memory.graphs:
        return memory.graphs[key].replay(engine)
    engine.graph_refused = memory.refused.get(key, "")
    before, _ = _allocated(engine.network.device)
    results = engine.chunk(steps)
    # The peak is the user's to reset: where the chunk made no new one, it took less than this.
    _, peak = _allocated(engine.network.device)
    if len(memory.seen) >= _SEEN:
        memory.seen.clear()
    memory.seen[key] = Shapes(engine.state.tracers, peak - before, steps)
    return results


class Graph:
    """A recorded chunk: where its inputs and tracers lie, and what it leaves behind."""

    def __init__(self, engine: "FoldedEngine", steps: int, shapes: "Shapes") -> None:
        self.prepared = engine.prepare()  # the graph reads it, too
        shapes.want_room(engine.network.device)
        self.steps = steps
        self.room, self.tracers = shapes.make(engine.network.device)
        self.constants = {name: x.clone() for name, x in _of_input(engine).items()}
        self.masks = {name: (fits, x if x is None else x.clone()) for name, (fits, x) in engine.masks.items()}
        self.owner: Any = lambda: None  # the engine whose tracers lie here
        runner = copy.copy(engine)
        runner.in_place, runner.state = True, State(dict(self.tracers))
        runner.recording = Recording({name: [] for name in engine.program.sites})
        runner.constants, runner.masks = {**engine.constants, **self.constants}, self.masks
        runner.folding = Folding(runner.network, runner.layout, runner.sizes, runner.batch, runner.constants)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = runner.chunk(steps)
            self.counts = torch.stack([counts[0] for counts in runner.recording.counts.values()], dim=1)

    def replay(self, engine: "FoldedEngine") -> dict[str, Any]:
        """Run the chunk for an engine: its tracers move on, its spikes are counted. Returns the network's output."""
        self._take(engine)
        # Room first: once the tracers have moved on, a run that lacks memory could not go back.
        counts, results = torch.empty_like(self.counts), dict(self.results)
        own = {name: torch.empty_like(x) for name, x in results.items() if isinstance(x, Tensor)}
        self.graph.replay()
        counts.copy_(self.counts)
        for name, x in own.items():
            results[name] = x.copy_(self.results[name])
        engine.state.tracers.update(self.tracers)
        engine.state.done += self.steps
        for i, pieces in enumerate(engine.recording.counts.values()):
            pieces.append(counts[:, i])
        return results

    def _take(self, engine: "FoldedEngine") -> None:
        """Bring an engine's inputs and tracers here; another one's tracers that lie here are given to it."""
        owner = self.owner()
        if owner is not engine:
            for name, tracer in self.tracers.items():
                if owner is not None and owner.state.tracers.get(name) is tracer:
                    owner.state.tracers[name] = tracer.clone()
            for name, x in self.constants.items():
                x.copy_(engine.constants[name])
            for name, (_, mask) in engine.masks.items():
                mine = self.masks[name][1]
                if mine is not None and mask is not None:  # both or none: the key says so
                    mine.copy_(mask)
            self.owner = weakref.ref(engine)
        if not engine.state.tracers:
            self.room.zero_()
            return
        for name, tracer in self.tracers.items():
            if engine.state.tracers[name] is not tracer:
                tracer.copy_(engine.state.tracers[name].reshape(tracer.shape))


class Shapes:
    """How the tracers of a network lie in memory for a shape of batch; some share a piece. And what a chunk took."""

    def __init__(self, tracers: Mapping[str, Tensor], taken: int, steps: int) -> None:
        starts: dict[int, int] = {}  # address of a piece of memory → where it will lie
        self.size = 0
        self.places: dict[str, Any] = {}
        for name, t in tracers.items():
            memory = t.untyped_storage()
            if memory.data_ptr() not in starts:
                starts[memory.data_ptr()] = self.size
                self.size += -(-memory.nbytes() // _ALIGNED) * _ALIGNED
            start = starts[memory.data_ptr()] // t.itemsize + t.storage_offset()
            self.places[name] = (t.dtype, tuple(t.shape), t.stride(), start)
        largest = max(t.numel() for t in tracers.values()) * steps
        self.taken = min(taken, _BYTES_PER_ACTIVATION * largest)

    def make(self, device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
        """Tracers of zeros, all in one piece of memory, and that piece."""
        room = torch.zeros(self.size, dtype=torch.uint8, device=device)
        return room, {name: room.view(dtype).as_strided(*place) for name, (dtype, *place) in self.places.items()}

    def want_room(self, device: torch.device) -> None:
        """Raise torch.OutOfMemoryError where a recording might not find its memory.

        A recording that fails midway leaves torch's allocator in a state that ends the process, so it must not fail. It
        can use nothing of what torch keeps for later: that is released before, and what it will need taken for a
        moment.
        """
        torch.cuda.empty_cache()
        torch.empty(int(_SPARE * self.taken) + self.size, dtype=torch.uint8, device=device)
        torch.cuda.empty_cache()


def _on_cuda(engine: "FoldedEngine") -> bool:
    return engine.network.device.type == "cuda"


def _allocated(device: torch.device) -> tuple[int, int]:
    """Bytes that torch holds on a GPU: now, and at the peak so far."""
    return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)


def _why_not(engine: "FoldedEngine") -> str:
    """Why the chunks of a run cannot be recorded: its steps are not all alike, or are looked at one by one."""
    drive = engine.drive
    if engine.ramp > 1:
        return "the input rises over the first steps (coding='rate')"
    if drive.stagger:
        return "stages are held back in the first steps (stagger)"
    return "spikes of single neurons are kept (record, count_neurons)" if drive.record or drive.count_neurons else ""


def _key(engine: "FoldedEngine") -> tuple[Any, ...]:
    """What a graph of an engine depends on, beside the weights. Tensors of inference mode are not written outside."""
    masks = tuple(engine.mask(step)[1] is None for step in engine.plan if isinstance(step, Attention))
    numbers = tuple(repr(x) for x in engine.constants.values() if not isinstance(x, Tensor))
    drive = (engine.resting, engine.drive.max_spike, torch.is_inference_mode_enabled())
    return (*drive, tuple(sorted(engine.sizes.items())), masks, numbers)


def _of_input(engine: "FoldedEngine") -> dict[str, Tensor]:
    """The constants of a run that are not weights."""
    program = engine.program
    weights = {name for name in engine.constants if name in program and isinstance(program[name], Weight)}
    return {name: x for name, x in engine.constants.items() if isinstance(x, Tensor) and name not in weights}
