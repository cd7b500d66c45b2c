"""A recipe: model, data and stages of one run, as a file that can be kept, compared and run again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from spikezip.errors import ConfigError
from spikezip.training.reading import read_file, read_override, to_yaml
from spikezip.training.settings import ConvertStage, Distillation, Expected, QuantizeStage, TrainStage, VerifyStage
from spikezip.training.typed import SettingError, Settings

__all__ = [
    "ConvertStage",
    "DataSettings",
    "Distillation",
    "Expected",
    "ModelSettings",
    "QuantizeStage",
    "Recipe",
    "Stages",
    "TrainStage",
    "VerifyStage",
    "load_recipe",
]


@dataclass(frozen=True)
class ModelSettings(Settings):
    """The network that is started from: trained (`path`), or made from scratch (`type`).

    Args:
        path: folder or Hub name of a model.
        type: model type of transformers, such as `vit`; the model then starts with random weights.
        config: settings of the model's own configuration that are to differ; any key of it.
        initialization: of a ViT made from scratch: `mimetic` starts with attention that looks at what is near, which
            its authors found to help on small data; null is the model's own.

    Example:
        >>> ModelSettings(type="vit", config={"hidden_size": 64}).check_known()
        >>> ModelSettings().check_known()
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: model: no model: name one with --set model=FOLDER, or set model.type
    """

    path: str | None = None
    type: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    initialization: Literal["mimetic"] | None = None

    def check(self) -> None:
        if self.initialization is not None and self.path is not None:
            raise SettingError(("initialization",), f"path = {self.path!r} is trained already; set one of them to null")
        if self.path is not None and self.type is not None:
            raise SettingError(
                ("type",),
                f"{self.type!r} starts from scratch, but path = {self.path!r} is set too; set one of them to null",
            )

    def check_known(self) -> None:
        """Refuse settings that name no model. Not asked at load: the caller may bring a model of its own."""
        if self.path is None and self.type is None:
            raise SettingError(("model",), "no model: name one with --set model=FOLDER, or set model.type")


@dataclass(frozen=True)
class DataSettings(Settings):
    """The data to train and test on.

    Args:
        name: which dataset, by its name in `spikezip.data`.
        source: folder or file that holds it, or a Hub name.
        image_size: pixels per side that images are brought to.
        max_length: tokens per text at most; longer ones are cut.
        limit: keep so many samples of each split, to try a recipe.
        options: settings of the dataset's own.

    Example:
        >>> DataSettings(name="cifar10", limit=0)
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: limit: must be at least 1, not 0
    """

    name: str | None = None
    source: str | None = None
    image_size: int | None = None
    max_length: int | None = None
    limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        self.within("image_size", "max_length", "limit", least=1)


_SWITCH = {"switch": True}  # may also be written `true` and `false`


@dataclass(frozen=True)
class Stages(Settings):
    """What is done, in this order. A stage that is absent, null or false is skipped; true takes its defaults.

    Args:
        finetune: train the float model as it is.
        relu: swap its activations for ReLU and train on.
        quantize: place quantizers and calibrate them.
        qat: train the quantized network on.
        convert: make the spiking network.
        verify: compare it with the quantized network, code by code.

    Example:
        >>> Stages.from_json({"quantize": True, "convert": True}).quantize.levels
        32
        >>> Stages(verify=VerifyStage())
        Traceback (most recent call last):
            ...
        spikezip.training.typed.SettingError: verify: needs the spiking network: add `convert: true`
    """

    finetune: TrainStage | None = field(default=None, metadata=_SWITCH)
    relu: TrainStage | None = field(default=None, metadata=_SWITCH)
    quantize: QuantizeStage | None = field(default=None, metadata=_SWITCH)
    qat: TrainStage | None = field(default=None, metadata=_SWITCH)
    convert: ConvertStage | None = field(default=None, metadata=_SWITCH)
    verify: VerifyStage | None = field(default=None, metadata=_SWITCH)

    def check(self) -> None:
        if self.verify is not None and self.convert is None:
            raise SettingError(("verify",), "needs the spiking network: add `convert: true`")
        for name in ("finetune", "relu"):
            stage = getattr(self, name)
            if stage is not None and stage.scale_learning_rate != 1.0:
                raise SettingError((name, "scale_learning_rate"), "a float network has no scales; set it for qat only")


STAGES = tuple(f.name for f in fields(Stages))


@dataclass(frozen=True)
class Recipe(Settings):
    """Everything that one run is told.

    Args:
        name: of the recipe.
        note: what a reader should know.
        model: the network that is started from.
        data: the data to train and test on.
        output: folder that the run writes to.
        seed: of all random numbers.
        precision: of training's forward and backward passes; `bf16` is autocast, the weights stay float32.
        workers: processes that read data; 0 reads in the main process.
        stages: what is done.
        expected: results to compare with.

    Example:
        >>> recipe = Recipe(name="try", stages=Stages(quantize=QuantizeStage(levels=16)))
        >>> Recipe.from_json(recipe.to_json()) == recipe
        True
        >>> recipe.to_yaml().splitlines()[0]
        'name: try'
    """

    name: str
    note: str = ""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    output: str | None = None
    seed: int = 0
    precision: Literal["float32", "bf16"] = "float32"
    workers: int = 0
    stages: Stages = field(default_factory=Stages)
    expected: tuple[Expected, ...] = ()

    def check(self) -> None:
        if not self.name:
            raise SettingError(("name",), "is empty")
        self.within("seed", least=0, below=2**32)
        self.within("workers", least=0)
        if all(getattr(self.stages, stage) is None for stage in STAGES):
            raise SettingError(("stages",), f"every stage is off; give at least one of {', '.join(STAGES)}")

    def to_yaml(self) -> str:
        """The whole recipe, defaults included, as `load_recipe` reads it."""
        return to_yaml(self.to_json())


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. An error names the file, the line and the key.

    Args:
        path: a YAML file.
        overrides: `key=value` each, later ones win. Keys are dotted; `qat.epochs` is short for `stages.qat.epochs`,
            `model` for `model.path`, `data` for `data.source`. Values are YAML.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "r.yaml")
        >>> _ = file.write_text("name: r\\nstages: {qat: {epochs: 3, batch_size: 32, learning_rate: 1e-4}}\\n")
        >>> load_recipe(file, ["model=folder", "qat.epochs=5"]).stages.qat.epochs
        5.0
        >>> load_recipe(file, ["qat.epoch=5"])
        Traceback (most recent call last):
            ...
        spikezip.errors.ConfigError: --set qat.epoch=5: stages.qat.epoch: unknown key, did you mean 'epochs'? Known...
    """
    document = read_file(path)
    for text in overrides:
        key, value = read_override(text)
        if key[0] in STAGES:
            key = ("stages", *key)
        elif key in _SHORT and not isinstance(value.data, dict):
            key = _SHORT[key]
        document.set(key, value, f"--set {text}")
    try:
        return Recipe.from_json(document.data)
    except SettingError as error:
        problem = error.problem
        if len(error.path) == 1 and error.path[0] in STAGES:
            problem = "is a stage; it stands under `stages:`"
        raise ConfigError(f"{document.place(error.path)}: {SettingError(error.path, problem)}") from None


_SHORT = {("model",): ("model", "path"), ("data",): ("data", "source")}
