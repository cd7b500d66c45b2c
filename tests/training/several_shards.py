"""What `test_sharded.py` starts in two processes: runs whose weights, gradients and moments are sharded (FSDP 2).

torchrun --nproc_per_node 2 several_shards.py FOLDER
with the settings of recipes/accelerate/fsdp.yaml in the environment
"""

import gc
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import toys
import transformers
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from several_processes import sums
from torch.distributed.fsdp import FSDPModule

from spikezip.errors import ConfigError
from spikezip.measure.processes import leave
from spikezip.quant import network
from spikezip.quant.network import QuantizedNetwork
from spikezip.training import DivergedError, InterruptedRunError, Trained, trainer

STAGES: dict[str, Any] = {
    "relu": toys.stage(epochs=2, evaluate_every=0, epsilon=1e-3),
    "quantize": {"batches": 2},
    "qat": toys.stage(
        epochs=2, learning_rate=1e-3, distill={}, micro_batch_size=8, epsilon=1e-3, layer_decay=0.8, keep="best"
    ),
    "convert": True,
    "verify": {"samples": 8},
}


def shard_on_cpu() -> None:
    """Let accelerate shard on the CPU. torch's FSDP 2 can; accelerate heeds its own settings only on a GPU."""
    plain: Any = AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        plain(self, *args, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init


def look_on() -> dict[str, set[Any]]:
    """What training sees of scales, and what share of its numbers a process holds at the end of a stage."""
    seen: dict[str, set[Any]] = {"dtypes": set(), "shares": set()}
    learn, fill = network.learn, trainer.fill

    def learning(qann: QuantizedNetwork, *args: Any) -> Any:
        seen["dtypes"] |= {f"{type(t).__name__} {t.dtype}" for t in map(qann.scale, qann.sites)}
        return learn(qann, *args)

    def filling(whole: Any, sharded: Any) -> None:
        for module in sharded.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # an evaluation leaves what lies outside blocks gathered
        held = sum(p.to_local().numel() for p in sharded.parameters())
        seen["shares"].add(held / sum(p.numel() for p in whole.parameters()))
        fill(whole, sharded)

    network.learn, trainer.fill = learning, filling
    return seen


def roberta() -> Any:
    """Its blocks end in a norm: products of a block, and the head, read a site of the block before."""
    torch.manual_seed(0)
    own = {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_hidden_layers": 2,
        "max_position_embeddings": 24,
        "pad_token_id": 0,
        "type_vocab_size": 1,
    }
    words = {"vocab_size": len(toys.WORDS), "num_labels": len(toys.MARKS), "initializer_range": 0.2}
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**{**toys.TINY, **own, **words}))


def images(folder: Path) -> Trained:
    return toys.run(toys.vit(num_hidden_layers=2), STAGES, toys.images(train=104, test=37), folder)


def texts(folder: Path) -> Trained:
    stages = {name: STAGES[name] for name in ("relu", "quantize", "qat")}
    return toys.run(roberta(), stages, toys.texts(train=104, test=37), folder, tokenizer=toys.tokenizer())


def random(folder: Path, **more: Any) -> Trained:
    """With dropout, and precision bfloat16. Resuming must bring back the moments of the optimizer too."""
    stages = {"quantize": {"batches": 2}, "qat": toys.stage(epochs=2, dropout=0.1, clip=0.0)}
    settings = {"precision": "bf16", "tried": False, **more}
    return toys.run(toys.vit(hidden_act="relu"), stages, toys.images(train=104, test=37), folder, **settings)


def interrupted(folder: Path) -> str:
    try:
        random(folder, progress=toys.stop_at("qat", 3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    except InterruptedRunError as error:
        return str(error)
    return "not interrupted"


def diverged(folder: Path, where: str) -> str:
    """By a number in the shard of one process, or by a step that is far too large."""
    model = toys.vit(num_hidden_layers=2)
    if where == "parameter":
        with torch.no_grad():
            model.classifier.weight[0, 0] = float("inf")
    stages = {"relu": toys.stage(learning_rate=1e30 if where == "rate" else 1e-3, epochs=4)}
    try:
        toys.run(model, stages, toys.images(train=64), folder)
    except DivergedError as error:
        return str(error)
    return "not diverged"


def refused(folder: Path) -> str:
    try:
        toys.run(toys.vit(), {"relu": toys.stage()}, toys.images(train=64), folder)
    except ConfigError as error:
        return str(error)
    return "not refused"


def main(home: Path) -> None:
    gc.freeze()  # every stage has all that there is looked through
    rank = PartialState(cpu=True).process_index
    said: dict[str, Any] = {"refused": refused(home / "refused")}  # by accelerate as it is, on the CPU
    shard_on_cpu()
    seen = look_on()
    for run in (images, texts):
        result = run(home / run.__name__)
        said[run.__name__] = {"metrics": result.metrics, "weights": sums(result.qann)}
    once = random(home / "random")
    said |= {
        "random": sums(once.model),
        "agreement": once.metrics["qat"]["grid_agreement"],
        "seen": {name: sorted(values) for name, values in seen.items()},
        "interrupted": interrupted(home / "stopped"),
        "left": None if rank else str(shutil.copytree(home / "stopped", home / "left")),
        "resumed": sums(random(home / "stopped", resume=True).model),
        "diverged": {where: diverged(home / where, where) for where in ("parameter", "rate")},
    }
    (home / f"rank{rank}.json").write_text(json.dumps(said))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
