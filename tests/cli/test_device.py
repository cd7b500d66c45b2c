"""`--device`, which every verb that runs a network has: which device is taken, and what is moved there."""

from pathlib import Path
from typing import Any

import pytest
import torch
from shell import fails, ok
from transformers import PreTrainedModel

import spikezip
from spikezip.cli.options import device
from spikezip.errors import ConfigError

# What each verb is given besides data, and the kinds of networks that it runs.
VERBS: dict[str, tuple[str, set[str]]] = {
    "quantize": ("{home}/vit {out}/qann", {"qann"}),
    "verify": ("{home}/vit-qann {home}/vit-snn", {"qann", "snn"}),
    "simulate": ("{home}/vit-snn --steps 2", {"snn"}),
    "measure": ("{home}/vit-snn --qann {home}/vit-qann --float {home}/vit", {"qann", "snn", "float"}),
    "exits": ("{home}/vit-snn --qann {home}/vit-qann", {"qann", "snn"}),
    "tune": ("{home}/vit-snn --staggers 0 --max-spikes 1", {"snn"}),
    "report": ("{home}/vit-snn --qann {home}/vit-qann --out {out}/report.html", {"qann", "snn"}),
}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, torch.device]]:
    """What was moved where, of which kind. What goes to a GPU stays on the CPU, since there need not be one."""
    seen: list[tuple[str, torch.device]] = []
    real = PreTrainedModel.to

    def to(model: PreTrainedModel, where: Any, *args: Any, **kwargs: Any) -> PreTrainedModel:
        if not isinstance(where, torch.device):  # a dtype, when a network is read from its folder
            return real(model, where, *args, **kwargs)
        seen.append((getattr(model, "kind", "float"), where))
        return model if where.type == "cuda" else real(model, where, *args, **kwargs)

    monkeypatch.setattr(PreTrainedModel, "to", to)
    return seen


def command(verb: str, home: Path, out: Path) -> list[str]:
    return [verb, *(word.format(home=home, out=out) for word in VERBS[verb][0].split())]


@pytest.mark.parametrize("verb", VERBS)
def test_a_device_that_is_none_is_refused_before_anything_is_loaded(verb: str, tmp_path: Path) -> None:
    line = fails(*command(verb, tmp_path, tmp_path), "--data", tmp_path / "none.npz", "--device", "nonsense")
    assert line.startswith("error: --device nonsense: ")
    assert str(tmp_path) not in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "gpu", "expected"),
    [([], False, "cpu"), (["--device", "cpu"], True, "cpu"), ([], True, "cuda:0")],
    ids=["no GPU", "cpu asked for", "a GPU"],
)
@pytest.mark.parametrize("verb", VERBS)
def test_every_network_is_moved(
    verb: str,
    options: list[str],
    gpu: bool,
    expected: str,
    home: Path,
    tmp_path: Path,
    moved: list[tuple[str, torch.device]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    ok(*command(verb, home, tmp_path), "--data", home / "images.npz", "--batch-size", 5, *options)
    assert {kind for kind, _ in moved} == VERBS[verb][1]
    assert {where for _, where in moved} == {torch.device(expected)}


def test_the_certificate_names_the_device(home: Path) -> None:
    for snn in ([], [home / "vit-snn"]):
        ok("verify", home / "vit-qann", *snn, "--data", home / "images.npz", "--samples", 2, "--device", "cpu")
        folder = snn[0] if snn else home / "vit-qann"
        certificate = spikezip.Certificate.from_json((folder / "certificate.json").read_text(encoding="utf-8"))
        assert certificate.settings["device"].startswith("cpu (")


def test_which_device_a_name_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"^--device cuda:99: \S"):  # no GPU, or not that many
        device("cuda:99")
    monkeypatch.setenv("LOCAL_RANK", "1")  # of several processes each has its own
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device(None) == torch.device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device(None) == torch.device("cpu")
