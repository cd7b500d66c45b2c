"""What neurons did: spikes up and down, the net that was needed, who stayed silent, when it was over."""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from spikezip.engines import Run
from spikezip.measure.document import Site
from spikezip.measure.latency import add_tallies, distribution, tally
from spikezip.measure.plain import Plain

Sums = tuple[int, ...]  # one number per step


@dataclass(frozen=True)
class SiteSums(Plain):
    """Sums over the samples of one site. They are whole numbers, so that the order of batches does not matter.

    Attributes:
        neurons: over all samples.
        spikes: up to and with each step.
        signed, net: ΣS and Σ|S| of the final codes S. Tracers start at 0, so ΣS = positive − negative spikes.
        silent: neurons that never fired; None if they were not counted.
        t_eq: last step with a spike → samples, of those that settled.
    """

    neurons: int = 0
    spikes: Sums = ()
    signed: int = 0
    net: int = 0
    silent: int | None = 0
    t_eq: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: "SiteSums") -> "SiteSums":
        counted = self.silent is not None and other.silent is not None
        return SiteSums(
            neurons=self.neurons + other.neurons,
            spikes=add_held(self.spikes, other.spikes),
            signed=self.signed + other.signed,
            net=self.net + other.net,
            silent=(self.silent or 0) + (other.silent or 0) if counted else None,
            t_eq=add_tallies(self.t_eq, other.t_eq),
        )

    def site(self, name: str, samples: int, steps: int) -> Site:
        """As it stands in the document: means per sample, rates per step."""
        spikes = held(self.spikes, steps)
        total = spikes[-1]
        positive = (total + self.signed) // 2
        return Site(
            name=name,
            neurons=self.neurons / samples,
            spikes=total / samples,
            positive=positive / samples,
            negative=(total - positive) / samples,
            net=self.net / samples,
            silent=None if self.silent is None else self.silent / self.neurons,
            t_eq=distribution(self.t_eq),
            rate=tuple(n / self.neurons for n in per_step(spikes)),
        )


def activity(run: Run) -> dict[str, SiteSums]:
    """The sums of one batch, site by site.

    Example:
        >>> import spikezip, torch, transformers
        >>> vit = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=32)
        >>> qann = spikezip.quantize(transformers.ViTModel(vit), spikezip.QuantConfig(levels=8))
        >>> snn = spikezip.convert(spikezip.calibrate(qann, torch.randn(2, 3, 32, 32)))
        >>> run = spikezip.simulate(snn, torch.randn(2, 3, 32, 32), steps="equilibrium", count_neurons=True)
        >>> sums = activity(run)["layers.0.attention.q"]
        >>> sums.neurons, sums.net <= sums.spikes[-1], sums.silent is not None
        (80, True, True)
    """
    samples = len(run.t_eq)
    settled = [t is not None for t in run.t_eq]
    last_spikes = run.site_t_eq
    found = {}
    for name, counts in run.spike_counts.items():
        codes = run.tracers[name].long()
        fired = run.neuron_spikes.get(name)
        last = zip(last_spikes[name], settled, strict=True)
        found[name] = SiteSums(
            neurons=samples * run.neurons[name],
            spikes=tuple(counts.sum(dim=1).cumsum(dim=0).tolist()),
            signed=int(codes.sum()),
            net=int(codes.abs().sum()),
            silent=None if fired is None else int((fired == 0).sum()),
            t_eq=tally(step for step, ok in last if ok),
        )
    return found


def held(sums: Sums, length: int) -> Sums:
    """Sums up to a length: what had ended stays as it was.

    Example:
        >>> held((1, 3), 4)
        (1, 3, 3, 3)
    """
    return sums + (sums[-1] if sums else 0,) * (length - len(sums))


def add_held(a: Sums, b: Sums) -> Sums:
    """Step by step; the shorter one stays as it ended.

    Example:
        >>> add_held((1, 3), (1, 1, 2))
        (2, 4, 5)
    """
    length = max(len(a), len(b))
    return tuple(x + y for x, y in zip(held(a, length), held(b, length), strict=True))


def per_step(sums: Sums) -> Sums:
    """What each step added.

    Example:
        >>> per_step((1, 3, 3))
        (1, 2, 0)
    """
    return tuple(later - sooner for sooner, later in pairwise((0, *sums)))


def kind(site: str) -> str:
    """The name of a site without the numbers of its layers: what sites of one kind share.

    Example:
        >>> kind("layers.11.attention.q")
        'layers.*.attention.q'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", site)


def by_kind(sites: tuple[Site, ...]) -> dict[str, Site]:
    """Sites of one kind put together, in the order of their first. T_eq is that of all their samples.

    Example:
        >>> from spikezip.measure.document import Steps
        >>> one = Site("layers.0.q", 2.0, 3.0, 2.0, 1.0, 1.0, 0.5, Steps(4, 4, 4, 4, {"4": 1}), (1.5,))
        >>> two = Site("layers.1.q", 2.0, 1.0, 1.0, 0.0, 1.0, 0.0, Steps(6, 6, 6, 6, {"6": 1}), (0.5,))
        >>> both = by_kind((one, two))["layers.*.q"]
        >>> both.spikes, both.silent, both.rate, both.t_eq.max
        (4.0, 0.25, (1.0,), 6)
    """
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(kind(site.name), []).append(site)
    return {name: _together(name, group) for name, group in groups.items()}


def _together(name: str, group: list[Site]) -> Site:
    neurons = sum(site.neurons for site in group)
    silent = [site.silent for site in group if site.silent is not None]
    counts: dict[str, int] = {}
    for site in group:
        counts = add_tallies(counts, site.t_eq.counts)
    columns = zip(*([rate * site.neurons for rate in site.rate] for site in group), strict=True)
    return Site(
        name=name,
        neurons=neurons,
        spikes=sum(site.spikes for site in group),
        positive=sum(site.positive for site in group),
        negative=sum(site.negative for site in group),
        net=sum(site.net for site in group),
        silent=sum(s * site.neurons for s, site in zip(silent, group, strict=True)) / neurons
        if len(silent) == len(group)
        else None,
        t_eq=distribution(counts),
        rate=tuple(sum(column) / neurons for column in columns),
    )
