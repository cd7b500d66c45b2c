"""RandAugment: each operation against pillow, and the dice."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from spikezip.data import RandAugment
from spikezip.data import randaugment as module
from spikezip.data.randaugment import OPERATIONS, randaugment
from spikezip.errors import ConfigError, InputError

BYTES = np.random.default_rng(0).integers(20, 230, (5, 24, 24, 3), dtype=np.uint8)
IMAGES = torch.from_numpy(BYTES.transpose(0, 3, 1, 2).copy()) / 255


def signs(value: float) -> Tensor:
    return torch.full((5, 1, 1, 1), value)


def strengths(value: float) -> Tensor:
    return torch.full((5, 1, 1, 1), value)


def by_pillow(name: str, strength: float, sign: float, picture: Image.Image) -> Image.Image:
    factor = max(0.1, 1 + 0.9 * strength * sign)
    simple = {
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "invert": ImageOps.invert,
        "posterize": lambda image: ImageOps.posterize(image, max(1, 4 - int(4 * strength))),
        "solarize": lambda image: ImageOps.solarize(image, 256 - int(256 * strength)),
        "solarize_add": lambda image: image.point(lambda v: min(255, v + int(110 * strength)) if v < 128 else v),
        "colour": lambda image: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda image: ImageEnhance.Contrast(image).enhance(factor),
        "brightness": lambda image: ImageEnhance.Brightness(image).enhance(factor),
        "sharpness": lambda image: ImageEnhance.Sharpness(image).enhance(factor),
    }
    return simple[name](picture)


@pytest.mark.parametrize("name", list(OPERATIONS)[:10])
@pytest.mark.parametrize("strength", [0.0, 0.45, 0.9, 1.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_tones_as_pillow_makes_them(name: str, strength: float, sign: float) -> None:
    found = OPERATIONS[name](IMAGES, strengths(strength), signs(sign))
    expected = np.stack([np.asarray(by_pillow(name, strength, sign, Image.fromarray(image))) for image in BYTES])
    # Pillow rounds to 8 bits on the way (blends: the poorer image, too, whose error the factor 1.9 enlarges).
    steps = (found * 255 - torch.from_numpy(expected.transpose(0, 3, 1, 2).copy())).abs().max()
    exact = ("equalize", "invert", "posterize", "solarize", "solarize_add")
    assert steps < (0.01 if name in exact else 2.0)


def test_equalize_of_few_tones() -> None:
    flat = np.full((24, 24), 77, np.uint8)
    two = np.where(np.arange(24) < 6, 10, 200).astype(np.uint8) * np.ones((24, 1), np.uint8)
    for image in (flat, two):
        found = OPERATIONS["equalize"](torch.from_numpy(image)[None, None] / 255, strengths(1)[:1], signs(1)[:1])
        expected = np.asarray(ImageOps.equalize(Image.fromarray(image)))
        assert np.array_equal((found[0, 0] * 255).round().numpy(), expected)


@pytest.mark.parametrize(
    ("name", "matrix"),
    [
        ("rotate", lambda s: (math.cos(s * math.pi / 6), math.sin(s * math.pi / 6), 0, 0, 0, 0)),
        ("shear_x", lambda s: (1, 0.3 * s, 0, 0, 1, 0)),
        ("shear_y", lambda s: (1, 0, 0, 0.3 * s, 1, 0)),
        ("translate_x", lambda s: (1, 0, 0.45 * 24 * s, 0, 1, 0)),
        ("translate_y", lambda s: (1, 0, 0, 0, 1, 0.45 * 24 * s)),
    ],
)
@pytest.mark.parametrize("strength", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_moves_as_pillow_makes_them(name: str, matrix, strength: float, sign: float) -> None:
    found = OPERATIONS[name](IMAGES, strengths(strength), signs(sign))
    a, b, c, d, e, f = matrix(sign * strength)
    if name == "rotate":
        d, e = -b, a
    middle = 12  # pillow counts from the corner: move the middle there and back
    c, f = c + middle - a * middle - b * middle, f + middle - d * middle - e * middle
    settings = (Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
    expected = np.stack([np.asarray(Image.fromarray(image).transform((24, 24), *settings)) for image in BYTES])
    inside = np.stack([np.asarray(Image.new("L", (24, 24), 255).transform((24, 24), *settings)) for _ in BYTES])
    # At the rim pillow repeats pixels where torch fades to grey: compare one pixel further in, where both interpolate.
    core = torch.nn.functional.avg_pool2d(torch.from_numpy(inside.copy()).float()[:, None], 3, 1, 1) > 254
    core[:, :, [0, -1]] = False
    core[:, :, :, [0, -1]] = False
    steps = (found * 255 - torch.from_numpy(expected.transpose(0, 3, 1, 2).copy())).abs()
    assert core.sum() > 300
    assert steps[core.expand_as(steps)].max() < 1.5  # pillow rounds to 8 bits
    if name == "translate_x":
        gone = int(0.45 * 24 * strength)
        rim = found[:, :, :, 24 - gone :] if sign > 0 else found[:, :, :, :gone]
        assert bool((rim[..., 1 if sign > 0 else 0 : gone if sign > 0 else gone - 1] - 0.5).abs().le(1e-6).all())


def test_every_image_draws_its_own() -> None:
    image = IMAGES[:1].expand(600, -1, -1, -1)
    found = randaugment(image, RandAugment(ops=1, magnitude=9.0, std=0.0))
    untouched = (found == image).flatten(1).all(1)
    assert 0.4 < untouched.float().mean() < 0.6  # half of the time an operation is left out; ± 5 standard deviations
    kinds = {tuple(sample.flatten().tolist()) for sample in found}
    # With a fixed magnitude: 6 without a sign and 9 with two, and the image itself.
    assert len(kinds) == 6 + 2 * 9 + 1


def test_magnitudes_spread() -> None:
    image = IMAGES[:1].expand(600, -1, -1, -1)
    found = randaugment(image, RandAugment(ops=1, magnitude=5.0, std=0.5))
    assert len({tuple(sample.flatten().tolist()) for sample in found}) > 100


def test_no_operations_and_one_channel() -> None:
    assert torch.equal(randaugment(IMAGES, RandAugment(ops=0)), IMAGES)
    grey = IMAGES[:, :1].repeat(20, 1, 1, 1)
    found = randaugment(grey, RandAugment())
    assert found.shape == grey.shape
    assert found.min() >= 0
    assert found.max() <= 1


def test_tiny_images_and_one_sample() -> None:
    for _ in range(30):
        assert randaugment(torch.rand(1, 3, 2, 2), RandAugment(ops=3)).shape == (1, 3, 2, 2)


def test_errors() -> None:
    with pytest.raises(InputError, match="1 or 3 channels, not 4"):
        randaugment(torch.rand(1, 4, 8, 8), RandAugment())
    for settings in (RandAugment(ops=-1), RandAugment(magnitude=11), RandAugment(std=-1)):
        with pytest.raises(ConfigError, match="magnitude is in 0 … 10"):
            randaugment(IMAGES, settings)


def test_small_batches_on_a_gpu_meet_the_same_operations() -> None:
    """Every image is left as it is, or has met one operation with one of its two signs; all of them are met."""
    torch.manual_seed(0)
    settings = RandAugment(ops=1, magnitude=7.0, std=0.0)
    images = torch.rand(400, 3, 8, 8)
    varied = module._everywhere(images, settings)
    strength = torch.full((400, 1, 1, 1), 0.7)
    candidates = {"none": images}
    for name, operation in module.OPERATIONS.items():
        for sign in (-1.0, 1.0):
            candidates[f"{name}{sign}"] = operation(images, strength, torch.full((400, 1, 1, 1), sign))
    same = {name: (values == varied).flatten(1).all(1) for name, values in candidates.items()}
    assert torch.stack(list(same.values())).any(0).all()
    assert all(bool(found.any()) for found in same.values())
    assert 0.3 < float(same["none"].double().mean()) < 0.7
