"""A measurement as a document: what was measured, on what, and every number, as JSON that can be kept and compared."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from spikezip.errors import InputError
from spikezip.measure.plain import Document, Plain, body_of

FORMAT, VERSION = "spikezip-measurement", 1


@dataclass(frozen=True)
class Model(Plain):
    """The network: its class, and how it was quantized.

    Attributes:
        levels: of sites that no pattern names; `weight_bits` None: float weights.
        neurons: per sample, over all sites (a mean, where samples differ in length).
        source: folder or name on the Hub.
    """

    class_: str
    parameters: int
    levels: int
    weight_bits: int | None
    sites: int
    neurons: float
    source: str | None = None


@dataclass(frozen=True)
class Data(Plain):
    """The data set. `classes`: None where the output is no choice; `labels`: names of classes, if the model has any."""

    name: str | None
    samples: int
    classes: int | None
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Settings(Plain):
    """How the spiking network was run."""

    steps: str | int
    engine: str = "folded"
    coding: str = "analog"
    max_spike: int = 1
    stagger: float = 0.0

    def check(self) -> None:
        if isinstance(self.steps, str) and self.steps != "equilibrium":
            raise InputError(f"steps: expected a whole number or 'equilibrium', not {self.steps!r}")


@dataclass(frozen=True)
class OverTime(Plain):
    """One value per step. Shares lie in 0 … 1; None where there is nothing to compare with.

    Attributes:
        agreement: share of answers that are those of `agreement_with`: "qann", the quantized network itself;
            "equilibrium", the spiking network when it has settled; "last step", where some samples had not settled.
        spikes_per_neuron: up to and with this step; a graded spike of m counts as m.
        firing_rate: spikes per neuron in this step.
    """

    step: tuple[int, ...]
    accuracy: tuple[float, ...] | None
    top5: tuple[float, ...] | None
    agreement: tuple[float, ...] | None
    agreement_with: str | None
    spikes_per_neuron: tuple[float, ...]
    firing_rate: tuple[float, ...]

    def check(self) -> None:
        steps = len(self.step)
        if not steps or self.step != tuple(range(1, steps + 1)):
            raise InputError("step: expected 1, 2, 3, …")
        for name in ("accuracy", "top5", "agreement", "spikes_per_neuron", "firing_rate"):
            values = getattr(self, name)
            if values is not None and len(values) != steps:
                raise InputError(f"{name}: expected {steps} values, one per step, not {len(values)}")
        for name in ("accuracy", "top5", "agreement"):
            _shares(name, getattr(self, name) or ())
        if any(later < sooner for sooner, later in pairwise(self.spikes_per_neuron)):
            raise InputError("spikes_per_neuron: it adds up over time and cannot fall")


@dataclass(frozen=True)
class Answers(Plain):
    """How often a network without time, the QANN or the float model, was right on the same samples."""

    accuracy: float | None
    top5: float | None = None

    def check(self) -> None:
        _shares("accuracy", [self.accuracy])
        _shares("top5", [self.top5])


@dataclass(frozen=True)
class Steps(Plain):
    """A distribution of step numbers, each one that occurred; `counts` says how often. None: there were none."""

    min: int | None
    median: int | None
    p99: int | None
    max: int | None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Latency(Plain):
    """When the answer is there.

    Attributes:
        t_up: the first step at which accuracy has gone half of the way from chance to its last value.
        within: points → the first step from which accuracy stays at or above that of the QANN minus so many points.
        t_eq: steps up to the last spike of a sample, over the samples that settled; `unsettled` had not.
    """

    t_up: int | None
    within: dict[str, int | None]
    t_eq: Steps
    unsettled: int


@dataclass(frozen=True)
class Site(Plain):
    """What the neurons of a site did, as means per sample.

    Attributes:
        neurons: how many; spikes are theirs together, so that `spikes / neurons` is spikes per neuron.
        positive, negative: spikes up and down, `spikes = positive + negative`.
        net: Σ|S| of the final codes S, the fewest spikes that could have led there.
        silent: share of the neurons that never fired.
        t_eq: steps up to the last spike at this site, over the samples that settled.
        rate: spikes per neuron in each step.
    """

    name: str
    neurons: float
    spikes: float
    positive: float
    negative: float
    net: float
    silent: float | None
    t_eq: Steps
    rate: tuple[float, ...]

    def check(self) -> None:
        _shares("silent", [self.silent])

    @property
    def spikes_per_neuron(self) -> float:
        return self.spikes / self.neurons

    @property
    def waste(self) -> float:
        """Spikes for every spike that was needed, minus one: 0 if none was taken back."""
        return self.spikes / self.net - 1 if self.net else 0.0


@dataclass(frozen=True)
class Measurement(Document):
    """Everything that was measured of one network, on one data set, with one setting.

    Example:
        >>> import tempfile
        >>> none = Steps(None, None, None, None)
        >>> curve = OverTime((1, 2), None, None, (0.5, 1.0), "equilibrium", (0.1, 0.3), (0.1, 0.2))
        >>> measurement = Measurement(
        ...     name="tiny",
        ...     model=Model("ViTModel", 10, 16, 8, 1, 4.0),
        ...     data=Data(None, 2, None),
        ...     settings=Settings("equilibrium"),
        ...     device="cpu",
        ...     over_time=curve,
        ...     latency=Latency(None, {}, none, 0),
        ...     sites=(Site("a", 4.0, 1.2, 1.0, 0.2, 0.8, 0.5, none, (0.1, 0.2)),),
        ... )
        >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ...     path = measurement.save(file.name)
        ...     Measurement.load(path) == measurement
        True
        >>> measurement.sites[0].waste
        0.4999999999999998
    """

    name: str
    model: Model
    data: Data
    settings: Settings
    device: str
    over_time: OverTime
    latency: Latency
    sites: tuple[Site, ...]
    qann: Answers | None = None
    float_: Answers | None = None
    operations: dict[str, Any] = field(default_factory=dict)
    energy: dict[str, Any] = field(default_factory=dict)
    complexity: tuple[Any, ...] = ()
    certificate: dict[str, Any] | None = None
    command: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        for site in self.sites:
            if len(site.rate) != self.steps:
                raise InputError(f"site {site.name!r} has {len(site.rate)} values over time, not {self.steps}")

    @property
    def steps(self) -> int:
        """T, the number of steps in the curves."""
        return len(self.over_time.step)

    @property
    def spikes_per_neuron(self) -> float:
        """Of the whole run."""
        return self.over_time.spikes_per_neuron[-1]

    def at(self, curve: str, step: int) -> float | None:
        """A curve of `over_time` at a step; past the last step it stays as it ended (the firing rate: 0).

        Steps past the end are known only where every sample has settled; else None.
        """
        values = getattr(self.over_time, curve)
        if values is None or step < 1 or (step > self.steps and self.latency.unsettled):
            return None
        return 0.0 if curve == "firing_rate" and step > self.steps else float(values[min(step, self.steps) - 1])

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the name and version of the format. Keys that are words of Python have no underscore."""
        plain = super().to_json()
        plain["model"] = {"class": plain["model"].pop("class_"), **plain["model"]}
        plain["float"] = plain.pop("float_")
        return {"format": FORMAT, "version": VERSION, **plain}

    @classmethod
    def from_json(cls, data: Any, where: str = "") -> "Measurement":
        rest = body_of(data, FORMAT, VERSION, "measurement", "spikezip measure", "measure again")
        if "float" in rest:
            rest["float_"] = rest.pop("float")
        if isinstance(rest.get("model"), dict) and "class" in rest["model"]:
            rest["model"] = {**rest["model"], "class_": rest["model"]["class"]}
            del rest["model"]["class"]
        return super().from_json(rest, where)


def _shares(name: str, values: Any) -> None:
    for value in values:
        if value is not None and not 0 <= value <= 1:
            raise InputError(f"{name}: a share lies in 0 … 1, not {value!r}")
