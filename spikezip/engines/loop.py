"""The loop over time: chunks of steps, the stop at equilibrium, and what comes out."""

import math
from collections.abc import Iterator, Mapping
from math import inf, isnan
from threading import Event
from typing import Any

import torch
from torch import Tensor

from spikezip.engines.engine import Engine
from spikezip.engines.event import EventEngine
from spikezip.engines.folded import FoldedEngine
from spikezip.engines.memory import release_memory
from spikezip.engines.run import Run
from spikezip.engines.spike import SpikeEngine
from spikezip.engines.split import StoppedError, can_split, join, parts_of, run_parts
from spikezip.engines.state import Drive
from spikezip.engines.walk import main_output, sizes_of
from spikezip.errors import ConfigError, SpikezipError
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron import not_a_number
from spikezip.program.freeze import Frozen, scale_key
from spikezip.program.layout import Layout
from spikezip.program.nodes import Program, Site, map_arguments
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
            return _run(*make_engine(network, given, drive), stop)

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


def _run(engine: Engine, why: str, stop: Event | None) -> Run:
    drive = engine.drive
    limit = step_limit(engine)
    stops = drive.stop_early or drive.steps == "equilibrium"
    outputs: list[Tensor] = []
    for n in chunks(limit, engine):
        if stop is not None and stop.is_set():
            raise StoppedError
        outputs += [primary(output, engine) for output in engine.advance(n)]
        if stops and bool(engine.at_equilibrium(engine.last_spike()).all()):
            break
    return _collect(engine, outputs, None if drive.steps == "equilibrium" else limit, why)


@torch.no_grad()
def equilibrium_output(network: Frozen, inputs: Mapping[str, Any], engine: str = AUTO) -> Any:
    """What the network returns once it is at equilibrium, in the structure of the program's output."""
    check_tensors(network)
    with torch.autocast(network.device.type, enabled=False):
        driver, _ = make_engine(network, inputs, Drive(engine=engine, steps="equilibrium"))
        output: Any = None
        for n in chunks(step_limit(driver), driver):
            output = driver.advance(n)[-1]
            if bool(driver.at_equilibrium(driver.last_spike()).all()):
                break
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
    if not isinstance(engine, FoldedEngine):
        found = found[None]
    return found


def find_primary(output: Any) -> Tensor:
    """What people mean by a network's result, as one tensor."""
    found = main_output(output, Tensor)
    if not found:
        raise SpikezipError("the network returns no tensor")
    return found[0] if len(found) == 1 else torch.stack(found, dim=-1)


def _collect(engine: Engine, outputs: list[Tensor], steps: int | None, why: str) -> Run:
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
