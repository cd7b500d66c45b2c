"""The loop over time: chunks of steps, the stop at equilibrium, and what comes out; batches in parts."""

import ctypes
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf, isnan
from mmap import PAGESIZE
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.engine import Drive, Engine, Run
from spikezip.engines.event import EventEngine
from spikezip.engines.folded import FoldedEngine
from spikezip.engines.spike import SpikeEngine
from spikezip.engines.walk import main_output
from spikezip.errors import ConfigError, SpikezipError
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron import not_a_number
from spikezip.program.batch import sample_count, sizes_of
from spikezip.program.freeze import Frozen, scale_key
from spikezip.program.layout import Layout, sample_dim
from spikezip.program.nodes import Program, Ref, Site, map_arguments
from spikezip.program.sizes import Bindings, bind

ENGINES: dict[str, type[Engine]] = {"folded": FoldedEngine, "spike": SpikeEngine, "event": EventEngine}
AUTO = "auto"

# Values of the largest layer that a chunk of the folded engine may hold, and the most steps it may have: past that,
# steps after equilibrium are computed for nothing.
_ACTIVATIONS_ON_CPU = 640_000
_ACTIVATIONS_COMPILED = 1_600_000  # on the CPU too, with compiled loops: these need less beside them
_ACTIVATIONS_ON_GPU = 640_000_000
_MOST_STEPS = 16
_FEWEST_STEPS = 4  # of a chunk on the CPU: a large batch is run in parts instead
_MOST_STEPS_TO_THE_END = 32  # on a GPU, where no step after equilibrium is left out


@torch.no_grad()
def run(network: Frozen, inputs: Mapping[str, Any], drive: Drive) -> Run:
    """One batch through a frozen network, driven as `drive` says.

    On the CPU the samples of a batch are shared among as many threads as torch uses, a few at a time, and each has one
    thread: a second one brings a tenth, and beside other work the two wait for one another for many times as long.
    """
    program = network.program
    unknown = [name for name in drive.record if name not in program.sites]
    if unknown:
        raise ConfigError(f"no site is called {', '.join(map(repr, unknown))}; see snn.neurons for the names")
    check_tensors(network)
    layout = program.layout
    name, _ = resolve_engine(network, layout, drive.engine)

    def run_alone(given: Mapping[str, Any], stop: Event | None = None) -> Run:
        with torch.autocast(network.device.type, enabled=False):
            engine, why = make_engine(network, given, drive)
            outputs = [primary(output, engine) for chunk in _advances(engine, stop) for output in chunk]
            return _collect(engine, outputs, why)

    if network.device.type != "cpu":
        return run_alone(inputs)
    release_memory()  # of earlier runs
    sizes = sizes_of(program, inputs)
    samples = sizes[program.batch] if program.batch is not None else 0
    parts = 1
    if can_split(program):
        parts = min(samples, max(torch.get_num_threads(), -(-samples // _samples_at_once(program, sizes))))
    if parts == 1 and samples != 1 and name != EventEngine.name:  # samples that cannot be told apart
        return run_alone(inputs)
    return join(run_parts(run_alone, parts_of(program, inputs, parts)), program)


def _samples_at_once(program: Program, sizes: Bindings) -> int:
    """How many samples an engine on the CPU takes, so that a chunk still has a few steps and fits into the caches."""
    values = max(math.prod(bind(size, sizes) for size in site.shape) for site in program.sites.values())
    return max(1, _cpu_budget() * sizes[program.batch or ""] // (_FEWEST_STEPS * values))


def check_tensors(network: Frozen) -> None:
    """Refuse scales that are not positive, and tensors that hold no numbers: they may be edited at any time.

    A GPU is waited for once.
    """
    floats = {key: x for key, x in network.tensors.items() if x.is_floating_point() and x.numel()}
    scales = [scale_key(site) for site in network.program.sites]
    least = torch.stack([floats[key].amin() for key in scales])
    most = torch.stack([x.amax() for x in floats.values()])
    bounds = torch.cat([least, most]).tolist()
    largest = dict(zip(floats, bounds[len(scales) :], strict=True))
    for key, smallest in zip(scales, bounds, strict=False):
        if not 0 < smallest <= largest[key] < inf:
            wrong = largest[key] if smallest > 0 else smallest
            raise ConfigError(f"{key} holds {wrong}: a scale must be positive; convert again")
    for key, value in largest.items():
        if isnan(value):
            raise ConfigError(f"{key} holds values that are no numbers (NaN); convert again")


def make_engine(network: Frozen, inputs: Mapping[str, Any], drive: Drive) -> tuple[Engine, str]:
    """The engine that a drive asks for, with its input, and why a faster one was not taken."""
    name, why = resolve_engine(network, network.program.layout, drive.engine)
    return ENGINES[name](network, network.program.layout, inputs, drive), why


def _advances(engine: Engine, stop: Event | None = None) -> Iterator[list[Any]]:
    """The outputs of one chunk of steps after another, up to the end or to equilibrium."""
    stops = engine.drive.stop_early or engine.drive.steps == "equilibrium"
    for n in chunks(step_limit(engine), engine):
        if stop is not None and stop.is_set():
            raise StoppedError
        yield engine.advance(n)
        if stops and bool(engine.at_equilibrium(engine.last_spike()).all()):
            return


@torch.no_grad()
def equilibrium_output(network: Frozen, inputs: Mapping[str, Any]) -> Any:
    """What the network returns once it is at equilibrium, in the structure of the program's output."""
    check_tensors(network)
    with torch.autocast(network.device.type, enabled=False):
        driver, _ = make_engine(network, inputs, Drive(steps="equilibrium"))
        output: Any = None
        for outputs in _advances(driver):
            output = outputs[-1]
        if isinstance(driver, FoldedEngine):  # of a chunk the last step
            output = map_arguments(output, lambda x: x[-1] if isinstance(x, Tensor) else x)
        return output


def resolve_engine(network: Frozen, layout: Layout, engine: str) -> tuple[str, str]:
    """The engine that a name stands for here, and why a faster one was not taken."""
    if engine not in (*ENGINES, AUTO):
        raise ConfigError(f"engine={engine!r}: choose one of {', '.join((*ENGINES, AUTO))}")
    cpu = network.device.type == "cpu"
    if engine == "event" and not cpu:
        raise ConfigError(
            f"engine='event' computes on the CPU, and the network is on {network.device}: "
            "move it with snn.cpu(), or choose engine='folded' (engine='auto' does)"
        )
    if engine != AUTO:
        return engine, ""
    refused = FoldedEngine.refused(layout)
    if refused:
        return "spike", refused
    # Events are faster at every batch size that was measured, where they are compiled: for integer weights, in float32.
    integers = all(node.bits is not None for node in network.moving_weights())
    compiled = cpu and numba_is_here() and integers and network.dtype == torch.float32
    return ("event" if compiled else "folded"), ""


def step_limit(engine: Engine) -> int:
    """How many steps there may be: those asked for, or up to equilibrium a bound that no network can exceed."""
    drive = engine.drive
    if drive.steps != "equilibrium":
        return drive.steps
    if drive.max_steps is not None:
        return drive.max_steps
    # Once a site's input rests and it is free to fire, its tracer walks over at most all its levels; stages settle one
    # after another.
    sites = engine.program.sites.values()
    return engine.ramp + sum(site.levels for site in sites) + drive.hold(len(sites) - 1) + 1


def chunks(limit: int, engine: Engine) -> Iterator[int]:
    """Sizes of consecutive chunks that make up `limit` steps: as many steps together as the device handles best."""
    size = engine.drive.chunk or _chunk_size(engine)
    while engine.state.done < limit:
        yield min(size, limit - engine.state.done)


def _chunk_size(engine: Engine) -> int:
    if engine.name == SpikeEngine.name:
        return 4  # steps between two looks for equilibrium
    largest = max(engine.neurons(site) for site in engine.program.sites.values()) * engine.batch
    if engine.network.device.type == "cpu":
        return min(max(_cpu_budget() // max(largest, 1), 2), _MOST_STEPS)
    stops = engine.drive.stop_early or engine.drive.steps == "equilibrium"
    most = _MOST_STEPS if stops else _MOST_STEPS_TO_THE_END
    size = min(max(_ACTIVATIONS_ON_GPU // max(largest, 1), 2), most)
    limit = step_limit(engine)
    return -(-limit // -(-limit // size))  # chunks of one size, which one graph serves


def _cpu_budget() -> int:
    return _ACTIVATIONS_COMPILED if numba_is_here() else _ACTIVATIONS_ON_CPU


def primary(output: Any, engine: Engine) -> Tensor:
    """What people mean by a network's result: its logits, its last hidden state, or its first tensor; `[n, B, …]`."""
    found = find_primary(output)
    return found if isinstance(engine, FoldedEngine) else found[None]


def find_primary(output: Any) -> Tensor:
    """What people mean by a network's result, as one tensor."""
    found = main_output(output, Tensor)
    if not found:
        raise SpikezipError("the network returns no tensor")
    return found[0] if len(found) == 1 else torch.stack(found, dim=-1)


def _collect(engine: Engine, outputs: list[Tensor], why: str) -> Run:
    steps = None if engine.drive.steps == "equilibrium" else step_limit(engine)
    recording, sites = engine.recording, engine.program.sites
    # All that needs no look at a value comes first: a GPU is still at work on the last chunk.
    tracers = {name: engine.tracer(name).to(_integers(site), copy=True) for name, site in sites.items()}
    # All sites at once: hundreds of small tensors would take longer than a chunk of steps.
    counts = torch.cat([torch.stack(chunk, dim=1) for chunk in zip(*recording.counts.values(), strict=True)])
    logits, last = torch.cat(outputs), engine.last_spike()
    settled = engine.at_equilibrium(last)

    check_finite(logits)
    if not bool(torch.isfinite(counts).all()):
        raise not_a_number()
    t_eq = [int(t) if ok else None for t, ok in zip(last.tolist(), settled.tolist(), strict=True)]
    computed = engine.state.done
    if steps is None:
        # The chunk may have run past the end; what remains is the last spike and one silent step to show it.
        known = [t for t in t_eq if t is not None]
        steps = max(max(known) + 1, engine.free_from) if len(known) == len(t_eq) else computed
    missing = max(steps - computed, 0)  # at equilibrium what follows is silent

    def over_time(whole: Tensor) -> Tensor:
        whole = whole[:steps]
        return torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])]) if missing else whole

    logits = torch.cat([logits, logits[-1:].expand(missing, *logits.shape[1:])]) if missing else logits[:steps]
    by_site = over_time(counts).to(torch.int64).transpose(0, 1).contiguous().unbind()  # [T, sites, B]
    return Run(
        logits=logits[-1],
        logits_per_step=logits,
        steps=steps,
        computed_steps=min(computed, steps),
        t_eq=t_eq,
        engine=engine.name,
        spike_counts=dict(zip(recording.counts, by_site, strict=True)),
        neurons={name: engine.neurons(site) for name, site in sites.items()},
        trains={name: over_time(torch.cat(recording.trains[name])) for name in sites if name in recording.trains},
        tracers=tracers,
        neuron_spikes={name: recording.neuron_spikes[name] for name in sites if name in recording.neuron_spikes},
        free_from=engine.free_from,
        coding=engine.drive.coding,
        max_spike=engine.drive.max_spike,
        stagger=engine.drive.stagger,
        why_engine=why,
        why_no_graph=engine.graph_refused if isinstance(engine, FoldedEngine) else "",
    )


def check_finite(outputs: Tensor) -> Tensor:
    if not bool(torch.isfinite(outputs).all()):
        raise SpikezipError("the network's output is not finite; check the weights and the scales of the sites")
    return outputs


def _integers(site: Site) -> torch.dtype:
    return torch.int8 if site.lo >= -128 and site.hi <= 127 else torch.int16


# --- a batch in parts, on several threads of the CPU: each takes some of the samples, with an engine of its own
#
# Threads inside the operators bring little here: a step is many short operators, and they wait for one another at each.
# Beside other work on the same cores they would also spin while they wait.


class StoppedError(Exception):
    """Raised by a part that ends because another one has failed, or the user wants no more."""


def parts_of(program: Program, inputs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The inputs of `count` parts of a batch, nearly equal. What the samples share goes to all parts."""
    if count == 1:
        return [dict(inputs)]
    dims, batch = program.derived(sample_dims), sample_count(program, inputs)

    def part(name: str, x: Any, start: int, stop: int) -> Any:
        dim = dims.get(name)
        return x if dim is None else x.narrow(dim, start, stop - start)

    bounds = pairwise(batch * i // count for i in range(count + 1))
    return [{name: part(name, x, start, stop) for name, x in inputs.items()} for start, stop in bounds]


def sample_dims(program: Program) -> dict[str, int | None]:
    """For inputs, sites and outputs the dimension in which samples follow one another; None if there is none."""
    names = (*(node.name for node in program.inputs), *program.sites, *program.returned)
    return {name: sample_dim(program, name, program.layout.prefix) for name in names}


def can_split(program: Program) -> bool:
    """Whether the run of a batch can be made from the runs of its parts."""
    if program.batch is None or program.layout.mixed or program.layout.mixed_before:
        return False
    dims = program.derived(sample_dims)
    known = all(dims[name] is not None or name not in program.layout.prefix for name in program.sites)
    return known and all(dims[ref.name] is not None for ref in main_output(program.output, Ref))


def run_parts(run: Callable[[dict[str, Any], Event], Run], parts: list[dict[str, Any]]) -> list[Run]:
    """`run` on every part, on as many threads as torch uses, without threads inside. An error or Ctrl-C ends them all.

    It gets the inputs and an event: once that is set, it raises `StoppedError`.
    """
    threads = torch.get_num_threads()
    stop = Event()

    def alone(inputs: dict[str, Any]) -> Run:
        torch.set_num_threads(1)  # of this thread
        try:
            with torch.no_grad():  # is a matter of the thread as well
                return run(inputs, stop)
        except BaseException:
            stop.set()
            raise

    try:
        with ThreadPoolExecutor(min(threads, len(parts)), thread_name_prefix="spikezip") as pool:
            waiting = [pool.submit(alone, inputs) for inputs in parts]
            try:
                wait(waiting)
            except BaseException:  # Ctrl-C
                stop.set()
                raise
        errors = [error for one in waiting if (error := one.exception()) is not None]
        for error in errors:
            if not isinstance(error, StoppedError):
                raise error
        return [one.result() for one in waiting]
    finally:
        torch.set_num_threads(threads)  # the mathematical library has one number for all threads


def join(runs: list[Run], program: Program) -> Run:
    """The run of a whole batch from the runs of its parts. Those at equilibrium earlier are silent from then on."""
    first, dims = runs[0], program.derived(sample_dims)
    if len(runs) == 1:
        return first
    steps = max(run.steps for run in runs)

    def silent(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(steps - len(x), *x.shape[1:])])

    def lasting(x: Tensor) -> Tensor:
        return torch.cat([x, x[-1:].expand(steps - len(x), *x.shape[1:])])

    def by_site(pieces: list[dict[str, Tensor]], before: int) -> dict[str, Tensor]:
        """One tensor for each site from those of the parts, with `before` dimensions in front of its own."""

        def whole(site: str) -> Tensor:
            dim = dims[site]  # None: samples share its neurons
            return pieces[0][site] if dim is None else torch.cat([piece[site] for piece in pieces], before + dim)

        return {site: whole(site) for site in pieces[0]}

    dim = dims[main_output(program.output, Ref)[0].name]
    assert dim is not None  # such a batch is not split
    logits = torch.cat([lasting(run.logits_per_step) for run in runs], dim=1 + dim)
    return replace(
        first,
        logits=logits[-1],
        logits_per_step=logits,
        steps=steps,
        computed_steps=max(run.computed_steps for run in runs),
        t_eq=[t for run in runs for t in run.t_eq],
        spike_counts={site: torch.cat([silent(run.spike_counts[site]) for run in runs], 1) for site in first.neurons},
        trains=by_site([{site: silent(x) for site, x in run.trains.items()} for run in runs], 1),
        tracers=by_site([run.tracers for run in runs], 0),
        neuron_spikes=by_site([run.neuron_spikes for run in runs], 0),
    )


# --- memory that is not needed any more, but kept: after many runs on a CPU several times what one of them takes
#
# Python looks for objects that hold one another once there are many of them, however large their tensors are. And of
# what threads have freed, the GNU C library returns only what lies at the end of its heaps.

SLACK = 1 << 30  # bytes by which a process may grow before it is looked through: pages that come back must be cleared
_least: int | None = None  # bytes resident after the last time, or the fewest seen


def release_memory() -> bool:
    """Return unused memory to the system, if the process has grown a lot since the last time; whether it was done.

    Example:
        >>> _ = release_memory()
        >>> release_memory()  # it has not grown since
        False
    """
    global _least
    trim, now = _trim(), _resident()
    if trim is None or now is None:
        return False
    _least = now if _least is None else min(_least, now)
    if now - _least < SLACK:
        return False
    gc.collect()
    trim(0)
    _least = _resident()
    return True


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim`, where the C library has one."""
    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).malloc_trim
    return None


def _resident() -> int | None:
    """Bytes of memory that this process has, on Linux."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE
    return None
