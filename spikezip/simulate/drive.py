"""The loop over time: chunks of steps, the stop at equilibrium, and what comes out."""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from fractions import Fraction
from threading import Event
from typing import Any, Literal

import torch
from torch import Tensor

from spikezip.batches import Batch, Prepared, prepare
from spikezip.engines.run import Run
from spikezip.errors import ConfigError, SpikezipError
from spikezip.execution import executing
from spikezip.ops.compiled import numba_is_here
from spikezip.ops.neuron.fast import not_a_number
from spikezip.simulate import graphs, heap
from spikezip.simulate.engine import Engine, Settings
from spikezip.simulate.event import EventEngine
from spikezip.simulate.folded import FoldedEngine
from spikezip.simulate.graphs import BYTES_PER_ACTIVATION, largest_layer
from spikezip.simulate.model import SpikingModel
from spikezip.simulate.outputs import map_tensors, primary
from spikezip.simulate.spike import SpikeEngine
from spikezip.simulate.split import StoppedError, at_once, join, parts_of
from spikezip.spiking.unscaled import plain

ENGINES: dict[str, type[Engine]] = {"folded": FoldedEngine, "spike": SpikeEngine, "event": EventEngine}
AUTO = "auto"
CODINGS = ("analog", "rate")
Steps = int | Literal["equilibrium"]

# Values of the largest layer that a chunk of the folded engine may hold, and the most steps it may have: past that,
# steps after equilibrium are computed for nothing.
_ACTIVATIONS_ON_CPU = 640_000
_ACTIVATIONS_COMPILED = 1_600_000  # on the CPU too, with compiled loops: these need less beside them
_ACTIVATIONS_ON_GPU = 640_000_000
_MOST_STEPS = 16
_MOST_STEPS_TO_THE_END = 32  # where no step after equilibrium is left out


@torch.no_grad()
def simulate(
    snn: SpikingModel,
    batch: Batch,
    steps: Steps = 64,
    engine: str = AUTO,
    *,
    coding: str = "analog",
    max_spike: int = 1,
    stagger: float = 0,
    chunk: int | None = None,
    record: tuple[str, ...] | list[str] = (),
    count_neurons: bool = False,
    stop_early: bool = True,
    max_steps: int | None = None,
) -> Run:
    """Run a batch through a spiking network, step by step.

    Args:
        snn: what `spikezip.convert` made.
        batch: a dict of model inputs, or the main input alone; labels are left out.
        steps: how many, or `"equilibrium"`: until nothing fires.
        engine: `"folded"` (all steps of a chunk at once), `"spike"` (the paper, step by step), `"event"` (only what
            fired costs work; on the CPU), or `"auto"`: what is fastest here. The spikes are the same.
        coding: `"analog"`: the input is there from the first step; `"rate"`: it rises over the first L steps, L being
            the levels of the first site.
        max_spike: the largest spike; 1 gives the paper's ternary spikes.
        stagger: k ≥ 0, fractions allowed. Sites are stages, numbered in the order in which a forward pass executes
            them, 0 for the one where the input enters. Stage n integrates from the first step on, but is held back for
            `floor(k·n)` steps: it may fire from step `floor(k·n) + 1` on. By then its input has come closer to rest,
            so it has less to take back: fewer spikes, more steps, the same codes in the end. 0 is the paper.
        chunk: steps that the folded engine takes at once; by default chosen from the size of the batch.
        record: names of sites whose full spike trains are kept.
        count_neurons: count the spikes of every single neuron, into `Run.neuron_spikes`.
        stop_early: leave out steps after equilibrium, which are silent; what is returned is the same.
        max_steps: cap for `steps="equilibrium"`; by default a bound that no network can exceed.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTModel(vit), spikezip.QuantConfig(levels=8))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> run = spikezip.simulate(snn, torch.randn(2, 3, 32, 32), steps="equilibrium")
        >>> run.settled, run.logits_per_step.shape[0] == run.steps
        (True, True)
    """
    engine = chosen(snn, engine)
    prepared, whole = start(snn, batch, engine, coding, max_spike, stagger, record=record, count_neurons=count_neurons)
    limit = step_limit(snn, steps, max_steps, whole.settings)
    stop_early = stop_early or steps == "equilibrium"

    def run(inputs: dict[str, Any], driver: Engine, stop: Event | None = None) -> Run:
        outputs: list[Tensor] = []
        with executing(driver):
            for n in chunks(limit, chunk, driver, known_size(driver, snn, inputs), stop_early):
                if stop is not None and stop.is_set():
                    raise StoppedError
                outputs.append(primary(driver.advance(snn.network, inputs, n)))
                if stop_early and bool(driver.settled(driver.last_spike()).all()):
                    break
        return _collect(snn, driver, outputs, None if steps == "equilibrium" else limit, engine, coding, stagger)

    cpu = snn.device.type == "cpu"
    threads = min(torch.get_num_threads(), prepared.size) if cpu else 1
    if cpu:
        heap.give_back()  # of an earlier run
    if threads == 1:
        return run(prepared.inputs, whole)

    def run_part(inputs: dict[str, Any], size: int, stop: Event) -> Run:
        return run(inputs, ENGINES[engine](replace(whole.settings, batch=size)), stop)

    return join(at_once(run_part, parts_of(prepared.inputs, prepared.size, threads)))


@torch.no_grad()
def equilibrium_output(snn: SpikingModel, batch: dict[str, Any]) -> Any:
    """The model's own output, labels and loss included, of a last silent step after the network has settled."""
    prepared, driver = start(snn, batch, "folded")
    with executing(driver):
        for n in chunks(step_limit(snn, "equilibrium", None, driver.settings), None, driver):
            driver.advance(snn.network, prepared.inputs, n)
            if bool(driver.settled(driver.last_spike()).all()):
                break
        driver.begin(1)
        return map_tensors(snn.network(**prepared.inputs, **prepared.labels), plain)


def start(
    snn: SpikingModel,
    batch: Batch,
    engine: str,
    coding: str = "analog",
    max_spike: int = 1,
    stagger: float = 0,
    *,
    record: Collection[str] = (),
    count_neurons: bool = False,
) -> tuple[Prepared, Engine]:
    """Check everything a user can get wrong, before any work."""
    check_drive(snn, engine, coding, max_spike, stagger)
    engine = chosen(snn, engine)
    neurons = snn.neurons
    unknown = [name for name in record if name not in neurons]
    if unknown:
        raise ConfigError(f"no site is called {', '.join(map(repr, unknown))}; see snn.neurons for the names")
    snn.check_dtype()
    prepared = prepare(snn, batch)
    entry = next(neuron for neuron in neurons.values() if neuron.entry)
    ramp = entry.levels if coding == "rate" else 1
    settings = Settings(prepared.size, ramp, max_spike, frozenset(record), count_neurons, _exact(stagger))
    return prepared, ENGINES[engine](settings)


def check_drive(snn: SpikingModel, engine: str, coding: str, max_spike: int, stagger: float) -> None:
    """Refuse settings that cannot work, by name."""
    if not isinstance(snn, SpikingModel):
        raise ConfigError(f"simulate takes what spikezip.convert returns, not {type(snn).__name__}")
    if engine not in (*ENGINES, AUTO):
        raise ConfigError(f"engine={engine!r}: choose one of {', '.join((*ENGINES, AUTO))}")
    if engine == "event" and snn.device.type != "cpu":
        raise ConfigError(
            f"engine='event' computes on the CPU, and the network is on {snn.device}: "
            "move it with snn.cpu(), or choose engine='folded' (engine='auto' does)"
        )
    if coding not in CODINGS:
        raise ConfigError(f"coding={coding!r}: choose one of {', '.join(CODINGS)}")
    if isinstance(max_spike, bool) or not isinstance(max_spike, int) or max_spike < 1:
        raise ConfigError(f"max_spike={max_spike!r}: a whole number from 1 is needed")
    if isinstance(stagger, bool) or not isinstance(stagger, (int, float)) or not 0 <= stagger < math.inf:
        raise ConfigError(f"stagger={stagger!r}: a number of steps from 0 is needed, such as 0.5")


def chosen(snn: SpikingModel, engine: str) -> str:
    """The engine that `"auto"` stands for, or the one that was named.

    Events are faster at every batch size that was measured, where they are compiled: on the CPU, with numba, for
    integer weights and float32. Elsewhere steps are folded.
    """
    if engine != AUTO or not isinstance(snn, SpikingModel):
        return engine
    exact = snn.quant_config.weight_bits is not None and snn.dtype == torch.float32
    return "event" if snn.device.type == "cpu" and numba_is_here() and exact else "folded"


def _exact(stagger: float) -> Fraction:
    """The number that the user wrote, not its neighbour among the floats."""
    return Fraction(str(float(stagger)))


def step_limit(snn: SpikingModel, steps: Steps, max_steps: int | None, settings: Settings) -> int:
    """How many steps there may be: those asked for, or up to equilibrium a bound that no network can exceed."""
    if steps != "equilibrium":
        return _whole("steps", steps, "'equilibrium'")
    if max_steps is not None:
        return _whole("max_steps", max_steps, "None")
    # Once a site's input rests and it is free to fire, its tracer walks over at most all its levels; stages settle one
    # after another.
    neurons = snn.neurons
    walks = sum(neuron.levels for neuron in neurons.values())
    return settings.ramp + walks + settings.hold(len(neurons) - 1) + 1


def _whole(name: str, value: Any, otherwise: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r}: a whole number from 1, or {otherwise}")
    return value


def chunks(
    limit: int, chunk: int | None, engine: Engine, known: int | None = None, stop_early: bool = True
) -> Iterator[int]:
    """Sizes of consecutive chunks that make up `limit` steps.

    Unless the caller says, the first step goes alone and shows how large the layers are, if that is not known from
    an earlier run. Then as many steps go together as keep the largest layer's activations within what the device
    handles best (measured; on the CPU caches count).
    """
    if chunk is not None:
        _whole("chunk", chunk, "None")
    while engine.done < limit:
        if chunk is not None:
            size = chunk
        elif engine.tracers or known is not None:
            size = _chunk_size(engine, known, limit, stop_early)
        else:
            size = 1
        yield min(size, limit - engine.done)


def known_size(engine: Engine, snn: SpikingModel, inputs: dict[str, Any]) -> int | None:
    """How many neurons the largest layer has for such a batch, where the GPU has seen one."""
    return largest_layer(engine, snn.network, inputs) if isinstance(engine, FoldedEngine) else None


def _chunk_size(engine: Engine, known: int | None, limit: int, stop_early: bool) -> int:
    tracers = engine.tracers.values()
    largest = max((t.numel() for t in tracers), default=0) or known or 1
    device = next((t.device for t in tracers), None)
    if device is not None and device.type == "cpu":
        budget = _ACTIVATIONS_COMPILED if numba_is_here() else _ACTIVATIONS_ON_CPU
        return min(max(budget // largest, 2), _MOST_STEPS)
    budget = _ACTIVATIONS_ON_GPU if device is None else _fits_on(device)
    most = _MOST_STEPS if stop_early else _MOST_STEPS_TO_THE_END
    size = min(max(budget // largest, 2), most)
    return -(-limit // -(-limit // size))  # chunks of one size, which one graph serves


def _fits_on(device: torch.device) -> int:
    """How many values of the largest layer a chunk may hold on a GPU, by what is free there now."""
    if device.type != "cuda":
        return _ACTIVATIONS_ON_GPU
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_ACTIVATIONS_ON_GPU, int((free + unused) / BYTES_PER_ACTIVATION))


def check_finite(logits: Tensor) -> Tensor:
    if not bool(torch.isfinite(logits).all()):
        raise SpikezipError("the network's output is not finite; check the weights and the scales of the sites")
    return logits


def _collect(
    snn: SpikingModel, engine: Engine, outputs: list[Tensor], steps: int | None, name: str, coding: str, stagger: float
) -> Run:
    logits = check_finite(torch.cat(outputs))
    last = engine.last_spike()
    settled = engine.settled(last)
    t_eq = [int(t) if ok else None for t, ok in zip(last.tolist(), settled.tolist(), strict=True)]
    computed = engine.done
    if steps is None:
        # The chunk may have run past the end; what remains is the last spike and one silent step to show it.
        known = [t for t in t_eq if t is not None]
        steps = max(max(known) + 1, engine.free_from) if len(known) == len(t_eq) else computed
    missing = steps - computed
    if missing > 0:  # the network is at equilibrium: what follows is silent
        logits = torch.cat([logits, logits[-1:].expand(missing, *logits.shape[1:])])
    logits = logits[:steps]

    def over_time(chunks: list[Tensor]) -> Tensor:
        whole = torch.cat(chunks)[:steps]
        silent = whole.new_zeros(max(missing, 0), *whole.shape[1:])
        return torch.cat([whole, silent]) if missing > 0 else whole

    sites = snn.neurons
    # All sites at once: on a GPU hundreds of small tensors would take longer than a chunk of steps.
    advances = zip(*engine.spike_counts.values(), strict=True)
    counts = over_time([torch.stack(chunk, dim=1) for chunk in advances])
    if not bool(torch.isfinite(counts).all()):  # a GPU's neurons say by their counts that they met a NaN
        raise not_a_number()
    if isinstance(engine, FoldedEngine):
        graphs.note_rest(snn.network, counts[computed // 2 : computed])
    by_site = counts.to(torch.int64).transpose(0, 1).contiguous().unbind()
    batch = engine.settings.batch
    return Run(
        logits=logits[-1],
        logits_per_step=logits,
        steps=steps,
        computed_steps=min(computed, steps),
        t_eq=t_eq,
        engine=name,
        spike_counts=dict(zip(engine.spike_counts, by_site, strict=True)),
        neurons={site: tracer.numel() // batch for site, tracer in engine.tracers.items()},
        trains={site: over_time(c) for site, c in engine.trains.items()},
        # A copy: where the engine's own lie, a recorded chunk of another run will write.
        tracers={site: tracer.to(sites[site].integers, copy=True) for site, tracer in engine.tracers.items()},
        neuron_spikes={site: engine.neuron_spikes[site] for site in engine.tracers if site in engine.neuron_spikes},
        free_from=engine.free_from,
        coding=coding,
        max_spike=engine.settings.max_spike,
        stagger=stagger,
    )
