"""Augmentation: what each operation does, checked by hand, and that every sample throws its own dice."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from spikezip.data import Augment, Augmentation, Pixels, RandAugment
from spikezip.data import augment as ops
from spikezip.data.warp import turn, warp
from spikezip.errors import ConfigError, InputError

EVERYTHING = Augmentation(
    crop_padding=2,
    flip=True,
    randaugment=RandAugment(),
    erase=0.5,
    mixup=0.8,
    cutmix=1.0,
    shift=2,
    rotate=15.0,
    drop=0.2,
)
SINGLE = [
    Augmentation(crop_padding=4),
    Augmentation(flip=True),
    Augmentation(randaugment=RandAugment()),
    Augmentation(erase=0.9),
    Augmentation(mixup=0.8),
    Augmentation(cutmix=1.0),
    Augmentation(mixup=0.8, cutmix=1.0),
    Augmentation(mixup=0.8, cutmix=1.0, mixed=0.5),
    Augmentation(shift=3),
    Augmentation(rotate=20.0),
]


def a_batch(count: int = 64, channels: int = 3, size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8), torch.arange(count) % 10


@pytest.mark.parametrize("settings", [EVERYTHING, *SINGLE])
def test_shapes_ranges_and_seed(settings: Augmentation) -> None:
    pixels, labels = a_batch()
    before = pixels.clone()
    augment = Augment(settings, classes=10)
    torch.manual_seed(1)
    varied, marks = augment(pixels, labels)
    assert varied.shape == pixels.shape
    assert torch.equal(pixels, before)  # the batch itself is not changed
    values = Pixels(None)(varied)
    assert values.min() >= 0
    assert values.max() <= 1 + 1e-6  # sums of float shares may end a last bit above 1
    assert not torch.equal(values, Pixels(None)(pixels))
    if settings.mixup or settings.cutmix:
        assert marks.shape == (64, 10)
        assert marks.dtype == torch.float32
        torch.testing.assert_close(marks.sum(1), torch.ones(64))  # two float shares, λ and 1 − λ
        assert marks.min() >= 0
    else:
        assert marks is labels
    torch.manual_seed(1)
    again, marks_again = augment(pixels, labels)
    assert torch.equal(again, varied)
    assert torch.equal(marks_again, marks)
    assert not torch.equal(augment(pixels, labels)[0], varied)


@pytest.mark.parametrize("settings", [s for s in SINGLE if not s.mixup and not s.cutmix])
def test_equal_samples_become_different(settings: Augmentation) -> None:
    pixels, labels = a_batch(1)
    varied, _ = Augment(settings, 10)(pixels.expand(64, -1, -1, -1), labels.expand(64))
    distinct = len({tuple(sample.flatten().tolist()) for sample in varied})
    assert distinct >= (2 if settings.flip else 10)


def test_off_is_the_identity() -> None:
    pixels, labels = a_batch()
    state = torch.get_rng_state()
    varied, marks = Augment(Augmentation(), 10)(pixels, labels)
    assert varied is pixels
    assert marks is labels
    assert torch.equal(torch.get_rng_state(), state)  # and no dice are thrown


def test_whole_pixels_stay_bytes() -> None:
    pixels, labels = a_batch()
    varied, _ = Augment(Augmentation(crop_padding=2, flip=True), 10)(pixels, labels)
    assert varied.dtype == torch.uint8


def test_crop_is_a_shift_with_zeros() -> None:
    pixels, _ = a_batch(200, size=6)
    found = ops.crop(pixels, 1)
    padded = torch.nn.functional.pad(pixels, (1, 1, 1, 1))
    candidates = [padded[:, :, top : top + 6, left : left + 6] for top in range(3) for left in range(3)]
    matches = torch.stack([(found == candidate).flatten(1).all(1) for candidate in candidates])
    assert bool(matches.any(0).all())
    assert int(matches.any(1).sum()) == 9  # all nine shifts occur


def test_flip_mirrors_about_half() -> None:
    pixels, _ = a_batch(400, size=6)
    found = ops.flip(pixels)
    mirrored = (found == pixels.flip(-1)).flatten(1).all(1)
    same = (found == pixels).flatten(1).all(1)
    assert bool((mirrored ^ same).all())
    assert 140 < int(mirrored.sum()) < 260  # 200 ± 6 standard deviations


def test_erase_is_one_rectangle_of_noise() -> None:
    pixels = torch.full((400, 3, 16, 16), 2.0)  # no noise in 0 … 1 looks like it
    found = ops.erase(pixels, 0.5)
    erased = (found != 2.0).all(1)
    assert torch.equal(erased, (found != 2.0).any(1))  # all channels together
    hit = erased.flatten(1).any(1)
    assert 140 < int(hit.sum()) < 260
    for mask in erased[hit]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)
        for line in (rows, columns):
            where = line.nonzero().flatten().tolist()
            assert all(b == a + 1 for a, b in pairwise(where))
        assert 0.01 <= mask.float().mean() <= 0.4
    assert torch.equal(ops.erase(pixels, 0.0), pixels)
    assert bool((ops.erase(pixels, 1.0) != 2.0).flatten(1).any(1).all())


def one_hot_pixels(count: int = 32) -> tuple[Tensor, Tensor]:
    """Sample i is 1 in channel i and 0 elsewhere, so a mixed batch shows who went into it."""
    return torch.eye(count)[:, :, None, None].expand(count, count, 16, 16).contiguous(), torch.arange(count)


def test_mixup_adds_two_samples_in_the_shares_of_the_labels() -> None:
    pixels, labels = one_hot_pixels()
    mixed, shares = ops.mix(pixels, labels, 32, mixup=0.8, cutmix=0.0)
    assert torch.equal(mixed, shares[:, :, None, None].expand_as(mixed))
    assert bool(((shares > 0).sum(1) <= 2).all())
    assert len(set(shares.diagonal().tolist())) > 10  # λ is each sample's own


def test_mixup_by_hand() -> None:
    pixels, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    torch.manual_seed(5)
    mixed, shares = ops.mix(pixels, labels, 4, mixup=0.4, cutmix=0.0)
    torch.manual_seed(5)
    other = torch.rand(4).argsort()
    kept = torch.distributions.Beta(torch.full((4,), 0.4), torch.full((4,), 0.4)).sample()
    for i in range(4):
        assert torch.equal(mixed[i], kept[i] * pixels[i] + (1 - kept[i]) * pixels[other[i]])
        expected = torch.zeros(4)
        expected[i] += kept[i]
        expected[other[i]] += 1 - kept[i]
        assert torch.equal(shares[i], expected)


def test_cutmix_pastes_a_rectangle_as_large_as_the_label_says() -> None:
    pixels, labels = one_hot_pixels()
    mixed, shares = ops.mix(pixels, labels, 32, mixup=0.0, cutmix=1.0)
    assert set(mixed.unique().tolist()) == {0.0, 1.0}
    # Shares of pixels, counted; in float32 the label's share is 1 minus a quotient.
    torch.testing.assert_close(mixed.mean((2, 3)), shares)
    for i in range(32):
        pasted = mixed[i, i] == 0
        assert torch.equal(pasted, pasted.any(1)[:, None] & pasted.any(0))
    assert len(set(shares.diagonal().tolist())) > 10


@pytest.mark.parametrize("alphas", [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_samples_that_are_not_mixed_stay_as_they_are(alphas: tuple[float, float]) -> None:
    pixels, labels = torch.rand(400, 3, 8, 8), torch.arange(400) % 10
    varied, shares = ops.mix(pixels, labels, 10, *alphas, mixed=0.25)
    alone = (varied == pixels).flatten(1).all(1)
    assert 260 < int(alone.sum()) < 345  # 300 ± 8.7, and a few that were mixed with themselves or hardly at all
    assert torch.equal(shares[alone].amax(1), torch.ones(int(alone.sum())))
    assert torch.equal(shares[alone].argmax(1), labels[alone])
    torch.manual_seed(1)
    all_mixed = ops.mix(pixels, labels, 10, *alphas)
    torch.manual_seed(1)
    assert all(
        torch.equal(a, b) for a, b in zip(all_mixed, ops.mix(pixels, labels, 10, *alphas, mixed=1.0), strict=True)
    )
    assert torch.equal(ops.mix(pixels, labels, 10, *alphas, mixed=0.0)[0], pixels)


def test_both_take_turns_by_batches() -> None:
    pixels, labels = one_hot_pixels(16)
    kinds = []
    for _ in range(60):
        mixed, _ = ops.mix(pixels, labels, 16, mixup=1.0, cutmix=1.0)
        kinds.append(set(mixed.unique().tolist()) == {0.0, 1.0})
    assert 12 < sum(kinds) < 48  # 30 ± 4.6 standard deviations


def test_drop_keeps_polarities_together() -> None:
    found = ops.drop(torch.ones(500, 8, 4, 4), 0.25)
    bins = found.reshape(500, 4, 2 * 16)
    assert torch.equal(bins.amin(2), bins.amax(2))
    assert 0.68 < bins.mean() < 0.82
    odd = ops.drop(torch.ones(500, 3, 4, 4), 0.5).mean((2, 3))
    assert len({tuple(sample) for sample in odd.tolist()}) == 8


def test_rotate_keeps_within_its_degrees() -> None:
    ramp = torch.linspace(-1, 1, 33).expand(200, 1, 33, 33).contiguous()  # brightness shows the column
    found = ops.rotate(ramp, 20.0)
    middle = slice(10, 23)
    slope_x = (found[:, 0, middle, 22] - found[:, 0, middle, 10]).mean(1)
    slope_y = (found[:, 0, 22, middle] - found[:, 0, 10, middle]).mean(1)
    degrees = torch.rad2deg(torch.atan2(slope_y, slope_x))
    assert degrees.abs().max() <= 20.01  # interpolation in float32
    assert degrees.max() > 15
    assert degrees.min() < -15


def test_warp_and_turn() -> None:
    pixels = torch.rand(2, 3, 5, 7)
    same = torch.eye(2, 3).expand(2, 2, 3)
    # Places are computed in float32, from edge to edge: they miss the middle of a pixel by a last bit.
    torch.testing.assert_close(warp(pixels, same), pixels, atol=1e-5, rtol=0)
    moved = warp(pixels, same + torch.tensor([[0, 0, 2.0], [0, 0, -1.0]]), fill=0.25)
    torch.testing.assert_close(moved[:, :, 1:, :5], pixels[:, :, :4, 2:], atol=1e-5, rtol=0)
    assert bool((moved[:, :, 0] == 0.25).all())
    square = torch.rand(1, 1, 6, 6)
    torch.testing.assert_close(warp(square, turn(torch.tensor([90.0]))), square.rot90(-1, (2, 3)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Augment(Augmentation(mixup=-1), 10), "augmentation: mixup is -1"),
        (lambda: Augment(Augmentation(erase=1.5), 10), "augmentation: erase is 1.5; a probability is at most 1"),
        (lambda: Augment(Augmentation(drop=2), 10), "augmentation: drop is 2"),
    ],
)
def test_settings_that_cannot_be(make: Callable[[], Augment], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_batches_that_cannot_be() -> None:
    augment = Augment(Augmentation(flip=True), 10)
    with pytest.raises(InputError, match=r"pixels are \[B, C, H, W\]"):
        augment(torch.zeros(3, 4, 4), torch.zeros(3))
    with pytest.raises(InputError, match=r"not .* and 2"):
        augment(torch.zeros(3, 3, 4, 4), torch.zeros(2))
