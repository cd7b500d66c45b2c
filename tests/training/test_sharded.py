"""Two processes that share one network's weights among them (FSDP 2) train the network that one process trains."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import several_shards
import torch
import toys
import yaml
from safetensors.torch import load_file

from spikezip.errors import ConfigError
from spikezip.models.networks import quantize
from spikezip.training import Trained
from spikezip.training.sharded import check_launcher, prepare_sharding
from spikezip.training.together import find_unused, require_scales

CONFIG = Path(__file__).parents[2] / "recipes/accelerate/fsdp.yaml"


def settings(**changed: str) -> dict[str, str]:
    """The config file as accelerate's launcher hands it on: in the environment."""
    read = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    assert read["distributed_type"] == "FSDP"
    found = {key.upper(): str(value) for key, value in read["fsdp_config"].items()}
    return {**found, "ACCELERATE_USE_FSDP": "true", "ACCELERATE_MIXED_PRECISION": read["mixed_precision"], **changed}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both processes have left what they found."""
    home = tmp_path_factory.mktemp("shards")
    here = Path(__file__)
    script = here.with_name("several_shards.py")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
    paths = os.pathsep.join([str(here.parents[2]), os.environ.get("PYTHONPATH", "")])
    # bfloat16 convolutions crash in oneDNN on some virtual machines; not with older instructions.
    environment = {
        **os.environ,
        **settings(),
        "PYTHONPATH": paths,
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *map(str, command), str(home)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return home


@pytest.fixture(scope="module")
def ranks(home: Path) -> list[dict[str, Any]]:
    return [json.loads((home / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def test_both_processes_end_with_one_network(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    for key in ("images", "texts"):
        assert first[key]["weights"] == second[key]["weights"]
    assert first["random"] == second["random"]


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_it_is_the_network_of_one_process(home: Path, ranks: list[dict[str, Any]], tmp_path: Path, kind: str) -> None:
    """Not bit for bit: gradients are sums in another order. (With the epsilon of the recipe that does not grow.)"""
    one: Trained = getattr(several_shards, kind)(tmp_path / "one")
    ours, theirs = ranks[0][kind]["metrics"], one.metrics
    for stage in ("relu", "qat"):
        file = f"{stage}/model/model.safetensors"
        found, expected = load_file(home / kind / file), load_file(one.folder / file)
        assert found.keys() == expected.keys()
        for name in expected:
            assert torch.allclose(found[name].double(), expected[name].double(), rtol=0, atol=1e-5), name
        assert ours[stage]["accuracy"] == pytest.approx(theirs[stage]["accuracy"], abs=1 / 37 + 1e-9)  # one sample
        assert ours[stage]["loss"] == pytest.approx(theirs[stage]["loss"], abs=1e-3)  # as above
        assert ours[stage]["steps"] == theirs[stage]["steps"] == 6
        assert ours[stage]["best_step"] == theirs[stage]["best_step"]
    assert ours["qat"]["grid_agreement"] == ours["qann"]["grid_agreement"] == 1.0

    def files(folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix == ".safetensors")

    assert files(home / kind) == files(one.folder)
    if kind == "images":
        assert ours["snn"]["exact"]


def test_every_process_holds_its_share(ranks: list[dict[str, Any]]) -> None:
    """Not exactly half: a scale is one number, and one process has it."""
    for rank in ranks:
        assert all(0.4 < share < 0.6 for share in rank["seen"]["shares"])
    assert {0.5} != set(ranks[0]["seen"]["shares"])


def test_weights_are_gathered_in_float32(ranks: list[dict[str, Any]]) -> None:
    """In a run with bf16 too, where FSDP would round them."""
    for rank in ranks:
        assert rank["seen"]["dtypes"] == ["Parameter torch.float32"]  # whole, no shard
        assert rank["agreement"] == 1.0


def test_a_signal_stops_both_and_both_go_on_bit_for_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["interrupted"].startswith("stopped in stage qat at step 4 of 6; saved in ")
        assert rank["resumed"] == rank["random"]


def test_a_run_goes_on_as_it_began(ranks: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="was saved with FSDP, and its optimizer cannot be read without"):
        several_shards.random(Path(ranks[0]["left"]), resume=True)


def test_both_say_where_it_diverged(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "the parameter classifier.weight holds values that are not finite" in rank["diverged"]["parameter"]
        assert "is the first value that is not finite" in rank["diverged"]["rate"]
    assert ranks[0]["diverged"] == ranks[1]["diverged"]


def test_sharding_that_would_not_happen_is_refused(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["refused"].startswith("the launcher asks for FSDP, but accelerate shards only among processes with")


def test_the_config_file_is_taken() -> None:
    check_launcher("float32", settings())
    check_launcher("bf16", settings(ACCELERATE_MIXED_PRECISION="bf16"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"FSDP_VERSION": "1"}, "set fsdp_version: 2"),
        ({"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "fsdp_cpu_ram_efficient_loading leaves all processes but the"),
        ({"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, "set it to FULL_STATE_DICT"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "asks for mixed_precision bf16, the recipe for precision float32"),
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "DeepSpeed"),
    ],
)
def test_what_cannot_be_done_is_refused(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_launcher("float32", settings(**changed))


def test_blocks_are_found_and_dropout_is_not_computed_twice() -> None:
    plugin = SimpleNamespace(fsdp_version=2, activation_checkpointing=True, transformer_cls_names_to_wrap=None)
    prepare_sharding(plugin, toys.vit(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    assert plugin.transformer_cls_names_to_wrap == ["ViTLayer"]
    assert plugin.mixed_precision_policy is None
    for model, drop_path in ((toys.vit(hidden_dropout_prob=0.1), 0.0), (toys.vit(), 0.1)):
        with pytest.raises(ConfigError, match="Set dropout and drop_path of this stage to 0"):
            prepare_sharding(plugin, model, drop_path)


def test_sites_without_a_scale_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no scale yet, and several processes cannot set one"):
        require_scales(quantize(toys.vit(hidden_act="relu")))


def test_parameters_without_a_gradient_are_found() -> None:
    model = several_shards.roberta()
    inputs = {"input_ids": torch.tensor([[2, 5, 3]])}
    state = torch.get_rng_state()
    assert find_unused(model.eval(), inputs) == []
    assert not model.training
    assert torch.equal(torch.get_rng_state(), state)
    model.register_parameter("idle", torch.nn.Parameter(torch.ones(1)))
    assert find_unused(model, inputs) == ["idle"]
