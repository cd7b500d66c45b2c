"""The quantized network (QANN): a program with sites, the parameters of the float model, and a scale for each site."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikezip.engines.quantized import quantized
from spikezip.errors import CalibrationError, ConfigError, CoverageError
from spikezip.program.batch import Batch, by_position, complete, named
from spikezip.program.capture import capture
from spikezip.program.coverage import explained
from spikezip.program.freeze import Frozen, check_dtype, check_finite, freeze
from spikezip.program.functions import ACTIVATIONS
from spikezip.program.nodes import Function, Node, Program, Site, Weight
from spikezip.program.place import place
from spikezip.program.ranges import Codes, with_codes
from spikezip.program.rotate import Rotation, with_rotations
from spikezip.program.tables import tables_on_grid
from spikezip.program.tidy import tidy
from spikezip.program.tree import attach, locate, tensor_at, tensors_in
from spikezip.quant.config import QuantConfig
from spikezip.quant.learn import Plan, learn
from spikezip.quant.report import CalibrationReport


class QuantizedNetwork(nn.Module):
    """A quantized network. In `eval()` it computes on the integer grid, exactly; in `train()` with gradients.

    Parameters and buffers of the float model keep their names. The scale of a site stands in the module whose output it
    quantizes, under `SITE.site_scale`: a vector of one number, or of one per channel.
    """

    kind = "qann"
    # Told every node of a training pass, and the values that are at hand; for who looks for the cause of something.
    watch: Callable[[Node, Mapping[str, Any]], None] | None = None
    calibration: CalibrationReport | None = None  # of the last calibration; it is not saved

    def __init__(self, program: Program, tensors: Mapping[str, Tensor], config: QuantConfig) -> None:
        super().__init__()
        self.program, self.quant_config = program, config
        self._plan = Plan(program)
        self._ready: set[str] = set()  # mirrors `site_ready` without asking the device for it in every forward pass
        weights = {node.key: node for node in program.nodes if isinstance(node, Weight)}
        self.keys = tuple(weights)
        for key, node in weights.items():
            trained = node.trained and tensors[key].is_floating_point()
            attach(self, key, tensors[key].detach().clone(), parameter=trained)
        like = next(t for t in tensors.values() if t.is_floating_point())
        for site in program.sites.values():
            self._attach_scale(site, like)

    def _attach_scale(self, site: Site, like: Tensor) -> None:
        attach(self, self.scale_key(site.name), like.new_ones(_channels(site)), parameter=True)
        ready = torch.zeros((), dtype=torch.bool, device=like.device)
        attach(self, f"{self.program.prefix}{site.name}.site_ready", ready, parameter=False)

    def scale_key(self, site: str) -> str:
        return f"{self.program.prefix}{site}.site_scale"

    @property
    def sites(self) -> dict[str, Site]:
        """The sites by name, in the order of execution."""
        return self.program.sites

    def scale(self, site: str) -> nn.Parameter:
        """The scale of a site, as it is learned."""
        found = tensor_at(*locate(self, self.scale_key(site)))
        assert isinstance(found, nn.Parameter)
        return found

    @torch.no_grad()
    def set_scale(self, site: str, scale: Tensor) -> None:
        """Start from this scale: one number, or one per channel for a site that has one per channel."""
        own = self.scale(site)
        own.copy_(scale.expand_as(own))
        self._ready_flag(site).fill_(True)
        self._ready.add(site)

    @torch.no_grad()
    def set_ranges(self, codes: Mapping[str, Codes], scales: Mapping[str, Tensor]) -> None:
        """Give sites other codes, and scales for these: one number, or one per channel."""
        like = next(iter(self.parameters()))
        self._set_program(with_codes(self.program, codes))
        for name, scale in scales.items():
            own = self.scale(name)
            shape = (_channels(self.sites[name]),)
            if own.shape != shape:  # another parameter, for an optimizer that is made later
                with torch.inference_mode(False):  # whose tensors could not be trained
                    new = nn.Parameter(own.new_ones(shape), own.requires_grad)
                attach(self, self.scale_key(name), new, parameter=True)
            self.set_scale(name, scale.to(like))

    @torch.no_grad()
    def rotate(self, rotations: Mapping[str, Rotation]) -> None:
        """Rotate the channels of some sites; these, and those of channels that stay apart, need scales next."""
        before = set(self.sites)
        self._set_program(with_rotations(self.program, rotations))
        with torch.inference_mode(False):  # whose tensors could not be trained
            for name in (name for name in self.sites if name in rotations or name not in before):
                self._attach_scale(self.sites[name], next(iter(self.parameters())))
                self._ready.discard(name)

    def _set_program(self, program: Program) -> None:
        self.__dict__["program"] = program  # a part of the model may have this name, too

    def is_ready(self, site: str) -> bool:
        """Whether the scale of a site was set by calibration, by training or from a checkpoint."""
        if site not in self._ready and bool(self._ready_flag(site)):
            self._ready.add(site)
        return site in self._ready

    def _ready_flag(self, site: str) -> Tensor:
        return tensor_at(*locate(self, f"{self.program.prefix}{site}.site_ready"))

    def waiting(self) -> list[str]:
        """The sites that have no scale yet."""
        return [name for name in self.sites if not self.is_ready(name)]

    def plan(self) -> Plan:
        """What is known of a training pass before there is a batch; made anew when a pass has changed the program."""
        if self._plan.program is not self.program:
            self._plan = Plan(self.program)
        return self._plan

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the program reads, by key, as they are now."""
        found = tensors_in(self)
        return {key: found[key] for key in self.keys}

    def frozen(self) -> Frozen:
        """The network with integer weights, as it is now."""
        waiting = self.waiting()
        if waiting:
            raise CalibrationError(
                f"{len(waiting)} of {len(self.sites)} sites have no scale yet, {waiting[0]!r} first: "
                "call spikezip.calibrate(qann, batches) or train the network"
            )
        return freeze(self.program, self.tensors(), {name: self.scale(name) for name in self.sites})

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def prepare(self, batch: Batch) -> dict[str, Any]:
        """The inputs of the program from a batch: complete, without labels, on the network's device."""
        return complete(self.program, named(self.program, batch), self.device)

    def forward(self, *args: Any, **inputs: Any) -> Any:
        given = self.prepare(by_position(self.program, args, inputs))
        check_dtype(next(self.scale(site).dtype for site in self.sites))
        return learn(self, given) if self.training else quantized(self.frozen(), given)[0]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._ready.clear()
        super()._load_from_state_dict(*args, **kwargs)


def _channels(site: Site) -> int:
    size = site.shape[-1] if site.by_channel else 1
    if not isinstance(size, int):
        raise ConfigError(f"site {site.name!r}: per_channel=True needs a fixed number of channels, not {size}")
    return size


def quantize(
    model: nn.Module,
    config: QuantConfig | None = None,
    example: Mapping[str, Any] | Tensor | None = None,
    batch_dim: int = 0,
) -> QuantizedNetwork:
    """A quantized network (QANN) of a float model, in `train()` or `eval()` as that is; the model stays untouched.

    `example` is a batch: what it holds does not matter, its names and shapes do; `batch_dim` is the dimension of its
    tensors that counts samples. The network needs scales next: `calibrate`, or training.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> qann = quantize(model, QuantConfig(levels=16), example=torch.randn(2, 4))
        >>> list(qann.sites), [name for name, _ in qann.named_parameters()][:2]
        (['2.in'], ['0.weight', '0.bias'])
    """
    config = config or QuantConfig()
    dtype = next((p.dtype for p in model.parameters()), None)
    if dtype is None:
        raise ConfigError(f"{type(model).__name__} has no parameters: there are no weights that could be quantized")
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"the model is in {dtype}: call model.float() first; codes need float32 or float64")
    if example is None:
        raise ConfigError("quantize needs example=batch: inputs by name, or the main input alone")
    captured = None
    try:
        captured = capture(model, example, batch_dim)
        program = place(tidy(captured.program), config, captured.modules)
        if config.embedding_bits is not None:
            program = tables_on_grid(program, config.embedding_bits)
    except CoverageError as error:
        raise explained(error, model, captured) from error
    check_finite(program, captured.tensors)
    _warn_of_activations(program)
    with torch.inference_mode(False):  # whose tensors could not be trained, nor changed outside of it
        return QuantizedNetwork(program, captured.tensors, config).train(model.training)


def _warn_of_activations(program: Program) -> None:
    moving = (node for node in program.moving if isinstance(node, Function))
    names = sorted({node.op.split(".")[1] for node in moving if node.op in ACTIVATIONS})
    if names:
        warnings.warn(
            f"a differential operator in the spiking network: {', '.join(names)}. It is exact, but recomputed in every "
            "step; fine-tune with ReLU for a network that only adds spikes.",
            stacklevel=4,
        )
