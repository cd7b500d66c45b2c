"""Pixels: the same numbers in training and on the command line, whatever the way there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from typer.testing import CliRunner

from spikezip.cli import data as cli
from spikezip.cli.app import app
from spikezip.data import Pixels
from spikezip.errors import ConfigError, InputError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def make_model(folder: Path, channels: int = 3, size: int = 16) -> transformers.ViTForImageClassification:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=size, patch_size=8,
        num_labels=10, num_channels=channels, hidden_act="relu",
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(folder)
    return model


def write_cifar(path: Path, count: int = 6) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(count)
    np.savez(path, x_train=images[::-1], y_train=labels[::-1], x_test=images, y_test=labels)
    return images


def test_the_arithmetic() -> None:
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    values = pixels.to(torch.float32) * (1 / 255)
    expected = (values - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    assert torch.equal(Pixels(None, MEAN, STD)(pixels), expected)
    assert torch.equal(Pixels(4, MEAN, STD)(pixels), expected)  # nothing to resize
    assert torch.equal(Pixels(None, MEAN, STD)(values), expected)  # as `Augment` returns them
    assert torch.equal(Pixels(None)(values), values)  # frames
    assert torch.equal(Pixels(None, rescale=None)(pixels), pixels.float())


def test_training_after_evaluation() -> None:
    """What is kept on the device between calls must serve in every mode."""
    settings = Pixels(None, (0.123,), (0.456,))
    with torch.inference_mode():
        settings(torch.rand(1, 1, 2, 2))
    values = torch.rand(1, 1, 2, 2, requires_grad=True)
    settings(values).sum().backward()
    assert values.grad is not None


@pytest.mark.parametrize("settings", [Pixels(None, MEAN, STD), Pixels(None, (0.5,), (0.25,)), Pixels(None)])
def test_the_command_line_sees_the_same_pixels(tmp_path: Path, settings: Pixels) -> None:
    model = make_model(tmp_path, size=32)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings.to_json()))
    images = write_cifar(tmp_path / "cifar.npz")
    expected = settings(torch.from_numpy(images))
    (batch,) = cli.batches(cli.Samples(images=images), model, tmp_path, 6)
    assert torch.equal(batch["pixel_values"], expected)
    (batch,) = cli.batches(cli.read(f"cifar10:{tmp_path / 'cifar.npz'}"), model, tmp_path, 6)
    assert torch.equal(batch["pixel_values"], expected)
    assert batch["labels"].tolist() == list(range(6))


def test_the_command_line_resizes_a_dataset_as_training_does(tmp_path: Path) -> None:
    settings = Pixels(16, MEAN, STD, "bicubic")
    model = make_model(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings.to_json()))
    images = write_cifar(tmp_path / "cifar.npz")
    found = list(cli.batches(cli.read(f"cifar10:{tmp_path / 'cifar.npz'}#train"), model, tmp_path, 4, limit=5))
    assert [len(batch["labels"]) for batch in found] == [4, 1]
    assert found[0]["labels"].tolist() == [5, 4, 3, 2]
    assert torch.equal(found[0]["pixel_values"], settings(torch.from_numpy(images[::-1][:4].copy())))


def test_the_command_line_takes_text_and_grey_images(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / f"stsa.fine.{part}").write_text(f"3 from {part}\n")
    assert cli.read(f"sst5:{tmp_path}") == cli.Samples(texts=["from test"], labels=[3])
    assert cli.read(f"sst5:{tmp_path}#validation").texts == ["from dev"]

    grey = np.random.default_rng(0).integers(0, 256, (2, 16, 16), dtype=np.uint8)
    for part in ("train", "t10k"):
        header = bytes([0, 0, 8, 3]) + np.array(grey.shape, ">u4").tobytes()
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + grey.tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 3, 4]))
    model = make_model(tmp_path / "vit")
    (batch,) = cli.batches(cli.read(f"mnist:{tmp_path}"), model, tmp_path / "vit", 4)
    expected = Pixels(None, (0.5,), (0.5,))(torch.from_numpy(grey)[:, None].repeat(1, 3, 1, 1))
    assert torch.equal(batch["pixel_values"], expected)


def test_frames_pass_as_they_are(tmp_path: Path) -> None:
    frames = torch.rand(3, 4, 16, 16)

    class Frames(cli.Split):
        labels = torch.tensor([0, 1, 2])

        def __getitems__(self, indices: Any) -> dict[str, Any]:
            return {"pixel_values": frames[list(indices)], "labels": self.labels[list(indices)]}

    samples = cli.Samples(images=Frames(), labels=[0, 1, 2])
    found = list(cli.batches(samples, make_model(tmp_path, channels=4), tmp_path, 2))
    assert torch.equal(torch.cat([batch["pixel_values"] for batch in found]), frames)
    with pytest.raises(InputError, match=r"the dataset has 4 channel\(s\), the model takes 3"):
        list(cli.batches(samples, make_model(tmp_path / "three"), tmp_path, 2))


def test_what_data_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--data nope:x: there is no such file or folder; a dataset is NAME:SOURCE"):
        cli.read("nope:x")
    write_cifar(tmp_path / "cifar.npz")
    with pytest.raises(InputError, match="behind # stands train, validation or test, not 'dev'"):
        cli.read(f"cifar10:{tmp_path / 'cifar.npz'}#dev")


def test_a_verb_takes_a_dataset(tmp_path: Path) -> None:
    make_model(tmp_path / "vit", size=32)
    write_cifar(tmp_path / "cifar.npz")
    source = f"cifar10:{tmp_path / 'cifar.npz'}#train"
    result = CliRunner().invoke(app, ["quantize", str(tmp_path / "vit"), str(tmp_path / "qann"), "--data", source])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "qann" / "spikezip.json").is_file()


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_resizing_is_near_what_pillow_does(resample: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    code = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[resample]
    expected = np.asarray(Image.fromarray(pixels).resize((16, 12), code)).transpose(2, 0, 1)
    found = Pixels((12, 16), resample=resample)(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None])[0]
    # Pillow works in 8 bits, with rounding between the two axes: a few steps of 1/255 apart.
    assert (found - torch.from_numpy(expected.copy()) / 255).abs().max() < 3 / 255
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize(
    "settings",
    [Pixels(None), Pixels(32, MEAN, STD), Pixels((16, 24), (0.5,), (0.5,), "bilinear"), Pixels(8, rescale=None)],
)
def test_json_round_trip(settings: Pixels) -> None:
    again = Pixels.from_json(json.loads(json.dumps(settings.to_json())))
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(again(pixels), settings(pixels))
    assert again.to_json() == settings.to_json()


def test_files_of_other_makers() -> None:
    assert Pixels.from_json({}) == Pixels(None, (0.5,), (0.5,), "bilinear")
    assert Pixels.from_json({"size": 224}).size == (224, 224)
    assert Pixels.from_json({"size": {"shortest_edge": 224}}).size == (224, 224)
    cropped = {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
    assert Pixels.from_json(cropped).size == (224, 224)
    assert Pixels.from_json({"size": 224, "do_resize": False}).size is None
    assert Pixels.from_json({"do_normalize": False}).mean == ()
    assert Pixels.from_json({"image_mean": [0.1, 0.2, 0.3], "image_std": 0.5}).std == (0.5,) * 3


def test_transformers_reads_what_is_written() -> None:
    processor = transformers.ViTImageProcessor(**Pixels(8, MEAN, STD, "bilinear").to_json())
    picture = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    found = processor(picture, return_tensors="np")["pixel_values"]
    expected = Pixels(8, MEAN, STD)(torch.from_numpy(picture.transpose(2, 0, 1).copy())[None])
    # The same equation, but another order of multiplications in float32.
    assert np.abs(found - expected.numpy()).max() < 1e-5


def test_errors() -> None:
    with pytest.raises(InputError, match=r"image_mean has 3 values, the images have 1 channel\(s\)"):
        Pixels(None, MEAN, STD)(torch.zeros(1, 1, 2, 2))
    with pytest.raises(ConfigError, match="mean has 1 values, std has 3"):
        Pixels(None, (0.5,), STD)
    with pytest.raises(ConfigError, match="every value must be above 0"):
        Pixels(None, (0.5,), (0.0,))
    with pytest.raises(ConfigError, match="resample is 'lanczos'"):
        Pixels(None, resample="lanczos")
    with pytest.raises(ConfigError, match="resample is 1; it is one of 0, 2, 3"):
        Pixels.from_json({"resample": 1})
    with pytest.raises(ConfigError, match="size is a number"):
        Pixels.from_json({"size": {"longest_edge": 3}})
    with pytest.raises(ConfigError, match="image_mean and image_std are numbers"):
        Pixels.from_json({"image_mean": "grey"})
