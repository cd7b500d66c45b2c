"""Settings of quantization: what is refused, which pattern wins, and the way through JSON."""

import json
from typing import Any

import pytest

from spikezip.errors import ConfigError
from spikezip.quant.config import QuantConfig, SiteConfig


@pytest.mark.parametrize("levels", [7, 3, 0, -4, 1, 258, 257, True, 8.0, "8", None])
def test_levels_that_no_signed_site_has(levels: Any) -> None:
    with pytest.raises(ConfigError, match="levels"):
        QuantConfig(levels=levels)


@pytest.mark.parametrize("levels", [4, 6, 32, 256])
def test_levels_make_ranges(levels: int) -> None:
    QuantConfig(levels=levels)
    assert SiteConfig().range(signed=True, default_levels=levels) == (-(levels // 2), levels // 2 - 1)
    assert SiteConfig().range(signed=False, default_levels=levels) == (0, levels - 1)


def test_two_levels_are_for_unsigned_sites() -> None:
    assert SiteConfig(levels=2).range(signed=False, default_levels=32) == (0, 1)
    assert SiteConfig(levels=7, signed=False).range(signed=True, default_levels=32) == (0, 6)
    with pytest.raises(ConfigError, match="signed"):
        SiteConfig(levels=2).range(signed=True, default_levels=32)
    with pytest.raises(ConfigError, match="signed"):
        QuantConfig(sites={"*": SiteConfig(levels=2, signed=True)})


@pytest.mark.parametrize(
    "site",
    [
        SiteConfig(lo=-4),
        SiteConfig(hi=3),
        SiteConfig(lo=0, hi=256),
        SiteConfig(lo=-128, hi=128),
        SiteConfig(lo=1, hi=3),
        SiteConfig(lo=-3, hi=0),
        SiteConfig(lo=-3, hi=-1),
        SiteConfig(levels=258),
        SiteConfig(levels=True),
        SiteConfig(levels=9, signed=True),
        SiteConfig(levels=1, signed=False),
        SiteConfig(levels=257, signed=False),
    ],
    ids=str,
)
def test_bad_site_settings_name_their_pattern(site: SiteConfig) -> None:
    with pytest.raises(ConfigError, match="encoder"):
        QuantConfig(sites={"encoder.*": site})


@pytest.mark.parametrize(("lo", "hi"), [(-4.5, 3), (-4, 3.5), (0, True)])
def test_limits_are_whole_numbers(lo: Any, hi: Any) -> None:
    with pytest.raises(ConfigError):
        QuantConfig(sites={"*": SiteConfig(lo=lo, hi=hi)})


def test_widest_limits_are_taken() -> None:
    config = QuantConfig(levels=4, sites={"a": SiteConfig(lo=0, hi=255), "b": SiteConfig(lo=-128, hi=127)})
    assert config.site("a").range(signed=True, default_levels=4) == (0, 255)
    assert config.site("b").range(signed=False, default_levels=4) == (-128, 127)


@pytest.mark.parametrize("bits", [4, 0, 32, True, "8", 8.5])
def test_unknown_weight_bits(bits: Any) -> None:
    with pytest.raises(ConfigError, match="weight_bits"):
        QuantConfig(weight_bits=bits)


@pytest.mark.parametrize("bits", [8, 16, None])
def test_known_weight_bits(bits: int | None) -> None:
    assert QuantConfig(weight_bits=bits).weight_bits == bits


@pytest.mark.parametrize("bits", [4, 0, 32, True, "8", 8.5])
def test_unknown_embedding_bits(bits: Any) -> None:
    with pytest.raises(ConfigError, match="embedding_bits"):
        QuantConfig(embedding_bits=bits)


@pytest.mark.parametrize("value", [1, 0, "yes"])
def test_per_channel_is_yes_or_no(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"sites\['\*\.LayerNorm'\]: per_channel"):
        QuantConfig(sites={"*.LayerNorm": SiteConfig(per_channel=value)})


def test_later_settings_are_in_the_json_only_when_set() -> None:
    """So a folder that does not use them is read by versions that do not know them; and theirs are read here."""
    old = QuantConfig(sites={"*": SiteConfig(levels=8)}).to_json()
    assert set(old) == {"levels", "weight_bits", "sites"}
    assert set(old["sites"]["*"]) == {"levels", "signed", "lo", "hi"}
    read = QuantConfig.from_json(old)
    assert (read.embedding_bits, read.site("any").per_channel) == (None, None)
    new = QuantConfig(embedding_bits=16, sites={"*": SiteConfig(per_channel=True)})
    assert new.to_json()["embedding_bits"] == 16
    assert QuantConfig.from_json(json.loads(json.dumps(new.to_json()))) == new


def test_the_last_pattern_that_matches_wins() -> None:
    wide, narrow = SiteConfig(levels=64), SiteConfig(levels=8)
    name = "layers.0.attention.p"
    assert QuantConfig(sites={"*": wide, "*.p": narrow}).site(name) == narrow
    assert QuantConfig(sites={"*.p": narrow, "*": wide}).site(name) == wide
    assert QuantConfig(sites={"*.q": narrow, "*.P": narrow}).site(name) == SiteConfig()
    # Whole settings win, not fields: the later pattern does not inherit what it leaves open.
    merged = QuantConfig(sites={"*": wide, "*.p": SiteConfig(signed=False)}).site(name)
    assert merged == SiteConfig(signed=False)


def test_json_keeps_everything_and_the_order_of_patterns() -> None:
    sites = {"z.*": SiteConfig(levels=64), "*": SiteConfig(lo=-3, hi=9), "a.*": SiteConfig(levels=7, signed=False)}
    config = QuantConfig(levels=16, weight_bits=None, sites=sites)
    read = QuantConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert read == config
    assert list(read.sites) == list(sites)  # dictionaries compare equal in any order; patterns do not
    assert QuantConfig.from_json({}) == QuantConfig()


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="levles"):
        QuantConfig.from_json({"levles": 8})
    with pytest.raises(ConfigError, match="levles"):
        QuantConfig.from_json({"sites": {"*": {"levles": 8}}})


def test_settings_do_not_change_afterwards() -> None:
    sites = {"*": SiteConfig(levels=8)}
    config = QuantConfig(sites=sites)
    sites["*"] = SiteConfig(levels=3)  # never checked, so it must not get in
    assert config.site("any").levels == 8
    with pytest.raises(AttributeError):
        config.levels = 8
