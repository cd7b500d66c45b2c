"""The stages of a recipe: what each of them is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from spikezip.data.augmentation import Augmentation
from spikezip.errors import ConfigError
from spikezip.quant.config import QuantConfig, SiteConfig
from spikezip.training.typed import SettingError, Settings


@dataclass(frozen=True)
class Distillation(Settings):
    """A second target beside the labels: a teacher's softened answers (Kullback–Leibler divergence of the logits).

    Args:
        weight: factor of this loss; the loss on the labels has the factor 1.
        temperature: both networks' logits are divided by it.
        teacher: `previous` is the network as it was before this stage; `finetune` or `relu` is the one that stage of
            the run left; otherwise a folder or Hub name.

    Example:
        >>> Distillation(temperature=0)
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: temperature: must be above 0, not 0
    """

    weight: float = 1.0
    temperature: float = 2.0
    teacher: str = "previous"

    def check(self) -> None:
        self.within("weight", least=0)
        self.within("temperature", above=0)
        if not self.teacher:
            raise SettingError(("teacher",), "is empty; `previous`, a folder or a Hub name is needed")


@dataclass(frozen=True)
class TrainStage(Settings):
    """One training: `finetune`, `relu` and `qat` are each one of these. The optimizer is AdamW.

    Args:
        epochs: passes over the training data; a part of one is possible (0.5).
        batch_size: samples per step of the optimizer, over all processes and accumulation.
        micro_batch_size: samples per device and forward pass; gradients are accumulated up to `batch_size`. Without
            it, `batch_size` is divided among the processes.
        learning_rate: the highest rate, after the warm-up. Give this or `base_learning_rate`.
        base_learning_rate: the highest rate is this × batch_size / 256.
        weight_decay: of weight matrices; biases, norms and scales have none.
        betas: momentum of AdamW.
        epsilon: of AdamW.
        layer_decay: each layer, from the last to the first, has the rate of the one behind it times this.
        warmup_epochs: the rate rises from 0 for so long.
        schedule: how the rate falls afterwards.
        clip: largest norm of the gradient; 0 is off.
        label_smoothing: the share of a label that is spread over all classes.
        drop_path: probability of leaving out a block, for a sample; it rises with depth from 0 to this, and replaces
            the model's own.
        dropout: replaces the model's own dropout probabilities.
        augmentation: how samples are varied.
        distill: a teacher beside the labels.
        evaluate_every: epochs between two evaluations; 0 is only at the end.
        keep: the network of the last step, or the one with the best validation accuracy.
        compile: run the blocks of a float model through torch.compile; with `graphs` or without.
        graphs: on one GPU, replay forward and backward passes as CUDA graphs, one per shape of a batch: launching many
            small kernels takes longer than running them. Memory for one forward pass per shape is kept.
        scale_learning_rate: factor of the learning rate for the scales of sites; only for `qat`.

    Example:
        >>> TrainStage(epochs=100, batch_size=768, base_learning_rate=1e-4).peak_learning_rate
        0.00030000000000000003
        >>> TrainStage(epochs=1, batch_size=100, micro_batch_size=32, learning_rate=1e-3)
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: micro_batch_size: 32 does not divide batch_size = 100
    """

    epochs: float
    batch_size: int
    micro_batch_size: int | None = None
    learning_rate: float | None = None
    base_learning_rate: float | None = None
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 1e-8
    layer_decay: float = 1.0
    warmup_epochs: float = 0.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    clip: float = 1.0
    label_smoothing: float = 0.0
    drop_path: float = 0.0
    dropout: float | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)
    distill: Distillation | None = None
    evaluate_every: float = 1.0
    keep: Literal["last", "best"] = "last"
    compile: bool = False
    graphs: bool = True
    scale_learning_rate: float = 1.0

    def check(self) -> None:
        self.within("epochs", "epsilon", "learning_rate", "base_learning_rate", above=0)
        self.within("batch_size", "micro_batch_size", "augmentation.randaugment.ops", least=1)
        self.within("augmentation.randaugment.variety", least=1)
        self.within("weight_decay", "warmup_epochs", "clip", "evaluate_every", "scale_learning_rate", least=0)
        self.within("label_smoothing", "drop_path", "dropout", "betas", "augmentation.drop", least=0, below=1)
        self.within("layer_decay", above=0, most=1)
        self.within("augmentation.erase", "augmentation.mixed", least=0, most=1)
        self.within("augmentation.randaugment.magnitude", least=0, most=10)
        self.within("augmentation.rotate", least=0, most=180)
        for name in ("crop_padding", "mixup", "cutmix", "shift", "randaugment.std"):
            self.within(f"augmentation.{name}", least=0)
        if (self.learning_rate is None) == (self.base_learning_rate is None):
            both = self.learning_rate is not None
            problem = "both are set, set the other to null" if both else "neither is set"
            raise SettingError(
                ("learning_rate",) if both else (),
                f"give learning_rate or base_learning_rate (× batch_size / 256); {problem}",
            )
        if self.warmup_epochs > self.epochs:
            raise SettingError(
                ("warmup_epochs",), f"{self.warmup_epochs:g} is more than epochs = {self.epochs:g}; set it lower too"
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise SettingError(
                ("micro_batch_size",), f"{self.micro_batch_size} does not divide batch_size = {self.batch_size}"
            )

    @property
    def peak_learning_rate(self) -> float:
        """The highest learning rate."""
        if self.learning_rate is not None:
            return self.learning_rate
        assert self.base_learning_rate is not None  # `check` saw to it
        return self.base_learning_rate * self.batch_size / 256


@dataclass(frozen=True)
class QuantizeStage(Settings):
    """Float network → quantized network, with scales from a few batches of training data.

    Args:
        levels: codes per site; even, 4 to 256.
        weight_bits: 8 or 16 put weights on an integer grid, where conversion is exact; null keeps float weights.
        embedding_bits: 8 or 16 put the embedding tables of a text model on a grid as well; null keeps them float.
        sites: settings by site-name pattern; the last pattern that matches wins.
        batches: batches that codes and scales are calibrated on, of samples drawn from all of the training data.
        batch_size: samples per batch of calibration.
        effort: "quick" leaves every site its levels and one scale; "default" finds what is best without training;
            "thorough" also fits every block to the float network's.

    Example:
        >>> QuantizeStage(levels=16, sites={"*.p": SiteConfig(levels=64)}).quant_config().site("0.attention.p").levels
        64
        >>> QuantizeStage(levels=7)
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: levels: levels=7: signed sites take an even number from 4 to 256
    """

    levels: int = 32
    weight_bits: Literal[8, 16] | None = 8
    embedding_bits: Literal[8, 16] | None = None
    sites: Mapping[str, SiteConfig] = field(default_factory=dict)
    batches: int = 8
    batch_size: int = 32
    effort: Literal["quick", "default", "thorough"] = "quick"

    def check(self) -> None:
        self.within("batches", "batch_size", least=1)
        _checked(("levels",), levels=self.levels)
        for pattern, site in self.sites.items():
            _checked(("sites", pattern), levels=self.levels, sites={pattern: site})
        _checked((), **self._quant_settings())

    def quant_config(self) -> QuantConfig:
        """What `spikezip.quantize` takes."""
        return QuantConfig(**self._quant_settings())

    def _quant_settings(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(QuantConfig) if hasattr(self, f.name)}


def _checked(path: tuple[str, ...], **settings: Any) -> None:
    """`QuantConfig` knows what it can be; its error gets the path of the setting."""
    try:
        QuantConfig(**settings)
    except ConfigError as error:
        raise SettingError(path, str(error)) from None


@dataclass(frozen=True)
class ConvertStage(Settings):
    """Quantized network → spiking network. There is nothing to set: `convert: true`."""


@dataclass(frozen=True)
class VerifyStage(Settings):
    """Run the spiking network on the test data to equilibrium and compare every code with the quantized network's.

    Args:
        steps: report the accuracy at exactly these time-steps as well: a number or a list.
        samples: compare the first so many samples of the test data; null is all.
        batch_size: samples per batch.
        engine: `folded`, `spike`, `event` (on the CPU) or `auto`; all give the same spikes.

    Example:
        >>> VerifyStage.from_json({"steps": 64}).steps
        (64,)
    """

    steps: tuple[int, ...] = ()
    samples: int | None = None
    batch_size: int = 32
    engine: Literal["folded", "spike", "event", "auto"] = "folded"

    def check(self) -> None:
        self.within("steps", "samples", "batch_size", least=1)


@dataclass(frozen=True)
class Expected(Settings):
    """A result to compare a run with.

    Args:
        what: which network, such as ReLU, QANN or SNN.
        accuracy: in percent.
        source: where the figure stands.
        steps: time-steps of a spiking network.
        levels: levels of a quantized or spiking network.

    Example:
        >>> Expected(what="SNN", accuracy=81.45, steps=64, levels=32, source="SpikeZIP-TF, table 5").steps
        64
    """

    what: str
    accuracy: float
    source: str
    steps: int | None = None
    levels: int | None = None

    def check(self) -> None:
        self.within("accuracy", least=0, most=100)
        self.within("steps", least=1)
        self.within("levels", least=2)
