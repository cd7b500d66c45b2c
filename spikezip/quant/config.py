"""What a user decides about quantization: levels and ranges of sites, bits of weights."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from spikezip.errors import ConfigError
from spikezip.ops.grid import WEIGHT_BITS

PLACEMENTS = ("paper", "products")
ATTENTIONS = ("probabilities", "exponentials")


@dataclass(frozen=True)
class SiteConfig:
    """Settings for the sites that a name pattern matches. `lo` and `hi` come together and override `levels`.

    `per_channel=True` gives the site a scale for every channel (last dimension) instead of one for all; without, that
    is left to calibration.

    Example:
        >>> SiteConfig(levels=8).range(signed=True, default_levels=32)
        (-4, 3)
    """

    levels: int | None = None
    signed: bool | None = None
    lo: int | None = None
    hi: int | None = None
    per_channel: bool | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SiteConfig":
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise ConfigError(f"unknown site settings: {', '.join(sorted(unknown))}")
        return cls(**data)

    def range(self, signed: bool, default_levels: int) -> tuple[int, int]:
        """The codes `lo, hi` of a site that is signed or not unless said otherwise here."""
        if not isinstance(self.per_channel, bool | None):
            raise ConfigError(f"per_channel={self.per_channel!r}: choose True or False")
        if (self.lo is None) != (self.hi is None):
            raise ConfigError("lo and hi are set together: give both or neither")
        if self.lo is not None and self.hi is not None:
            if any(isinstance(x, bool) or not isinstance(x, int) for x in (self.lo, self.hi)):
                raise ConfigError(f"lo={self.lo!r}, hi={self.hi!r}: whole numbers are needed")
            if not -32768 <= self.lo <= 0 < self.hi <= 32767:
                raise ConfigError(f"lo={self.lo}, hi={self.hi}: need lo ≤ 0 < hi, within 16 bits")
            if self.hi - self.lo + 1 > 256:
                raise ConfigError(f"lo={self.lo}, hi={self.hi} makes {self.hi - self.lo + 1} levels; at most 256")
            return self.lo, self.hi
        levels = default_levels if self.levels is None else self.levels
        signed = signed if self.signed is None else self.signed
        check_levels(levels, signed)
        return (-levels // 2, levels // 2 - 1) if signed else (0, levels - 1)


@dataclass(frozen=True)
class QuantConfig:
    """How a model is quantized.

    Args:
        levels: codes per site; even, 4 to 256 (unsigned sites: from 2).
        weight_bits: 8 or 16 put weights on an integer grid per output channel, where conversion is exact;
            None keeps float weights, as in the paper.
        sites: settings by site-name pattern (`*` matches anything); the last pattern that matches wins.
        embedding_bits: 8 or 16 put the embedding tables of a text model on an integer grid per row;
            None keeps them in floats. A table that is also an output layer takes the `weight_bits` or None.
        placement: where sites stand. `"paper"`: at every product, on what enters a residual sum, and behind the last
            norm; `"products"`: at products only, the least that is exact.
        attention: what is quantized in attention. `"probabilities"`: the softmax, as in the paper; `"exponentials"`:
            the exponentials, which are divided by their sum after the product with v. They need fewer levels and fire
            more spikes. None: probabilities with the placement `"paper"`, else exponentials.
        rotate: whether calibration may rotate the channels of sites, where that makes a smaller error: with additions,
            in every step. None: with the placement `"products"`, not with that of the paper.

    Example:
        >>> config = QuantConfig(levels=16, sites={"*.p": SiteConfig(levels=64)})
        >>> config.site("layers.0.attention.p").levels
        64
        >>> QuantConfig.from_json(config.to_json()) == config
        True
    """

    levels: int = 32
    weight_bits: int | None = 8
    sites: Mapping[str, SiteConfig] = field(default_factory=dict)
    embedding_bits: int | None = None
    placement: str = "paper"
    attention: str | None = None
    rotate: bool | None = None

    def __post_init__(self) -> None:
        check_levels(self.levels, signed=True)  # every network has signed sites; unsigned ones are set by pattern
        if self.weight_bits is not None and self.weight_bits not in WEIGHT_BITS:
            raise ConfigError(f"weight_bits={self.weight_bits!r}: choose 8, 16, or None for float weights")
        if self.embedding_bits is not None and self.embedding_bits not in WEIGHT_BITS:
            raise ConfigError(f"embedding_bits={self.embedding_bits!r}: choose 8, 16, or None for float tables")
        if self.placement not in PLACEMENTS:
            raise ConfigError(f"placement={self.placement!r}: choose one of {', '.join(PLACEMENTS)}")
        if self.attention is not None and self.attention not in ATTENTIONS:
            raise ConfigError(f"attention={self.attention!r}: choose one of {', '.join(ATTENTIONS)}, or None")
        if not isinstance(self.rotate, bool | None):
            raise ConfigError(f"rotate={self.rotate!r}: choose True, False or None")
        sites = {}
        for pattern, site in self.sites.items():
            try:
                sites[pattern] = site = site if isinstance(site, SiteConfig) else SiteConfig.from_json(site)
                # Whether a site is signed is known when it is placed: until then a setting must be possible for one.
                site.range(signed=False, default_levels=self.levels)
            except ConfigError as error:
                raise ConfigError(f"sites[{pattern!r}]: {error}") from None
        object.__setattr__(self, "sites", sites)

    @property
    def exponentials(self) -> bool:
        """Whether attention is quantized before the division of its softmax."""
        return self.attention == "exponentials" or (self.attention is None and self.placement == "products")

    @property
    def rotates(self) -> bool:
        """Whether calibration may rotate the channels of sites."""
        return self.placement == "products" if self.rotate is None else self.rotate

    def site(self, name: str) -> SiteConfig:
        """The settings for the site of this name."""
        found = SiteConfig()
        for pattern, config in self.sites.items():
            if fnmatchcase(name, pattern):
                found = config
        return found

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON. Those that came later stay out while unset, so that earlier versions read the rest."""
        data = asdict(self)
        if data["embedding_bits"] is None:
            del data["embedding_bits"]
        if data["placement"] == "paper":
            del data["placement"]
        for name in ("attention", "rotate"):
            if data[name] is None:
                del data[name]
        for site in data["sites"].values():
            if site["per_channel"] is None:
                del site["per_channel"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "QuantConfig":
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise ConfigError(f"unknown quantization settings: {', '.join(sorted(unknown))}")
        return cls(**data)


def check_levels(levels: int, signed: bool) -> None:
    """Refuse levels that no site can have.

    Example:
        >>> check_levels(7, signed=True)
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: levels=7: signed sites take an even number from 4 to 256
    """
    if isinstance(levels, bool) or not isinstance(levels, int):
        raise ConfigError(f"levels={levels!r}: a whole number is needed")
    if signed and not (4 <= levels <= 256 and levels % 2 == 0):
        raise ConfigError(f"levels={levels}: signed sites take an even number from 4 to 256")
    if not signed and not 2 <= levels <= 256:
        raise ConfigError(f"levels={levels}: unsigned sites take 2 to 256")
