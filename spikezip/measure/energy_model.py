"""What an operation costs: energies of 45 nm CMOS, and how many operations a function takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spikezip.errors import ConfigError, InputError
from spikezip.measure.plain import Plain

HOROWITZ = "M. Horowitz, Computing's energy problem (and what we can do about it), ISSCC 2014, 45 nm, 0.9 V"
MEMORIES = ("off", "sram", "dram")


@dataclass(frozen=True)
class FunctionCost(Plain):
    """Operations of a function: per element and per row (vector).

    Attributes:
        adds: float additions, subtractions and comparisons per element.
        macs: float multiplications or multiply–accumulates per element.
        row_macs: the same per row.
        differential: whether the spiking network recomputes it and emits the difference, one more addition.
    """

    adds: float = 0
    macs: float = 0
    row_macs: float = 0
    differential: bool = True


# exp: one step of range reduction, a polynomial of degree 5. 1/x: two steps of Newton, two each; 1/√x: two, three each.
EXP, RECIPROCAL, RSQRT = 6, 4, 6

FUNCTIONS: Mapping[str, FunctionCost] = {
    # maximum, minus maximum, sum | scale and mask, exp, times the reciprocal | the reciprocal
    "softmax": FunctionCost(adds=3, macs=1 + EXP + 1, row_macs=RECIPROCAL),
    # mean, minus mean | square and add, times 1/σ, weight and bias | 1/n twice, 1/σ
    "layernorm": FunctionCost(adds=2, macs=3, row_macs=2 + RSQRT),
    # square and add, times 1/r, weight | 1/n and epsilon, 1/r
    "rmsnorm": FunctionCost(macs=3, row_macs=1 + RSQRT),
    # erf by Abramowitz and Stegun 7.1.26: x/√2, 1/(1 + p·x), a polynomial of degree 5, exp(−x²), one more;
    # then x/2·(1 + erf)
    "gelu": FunctionCost(macs=1 + 1 + RECIPROCAL + 5 + 1 + EXP + 1 + 2),
    # tanh = 1 − 2/(exp(2x) + 1); around it a cubic of four, and two
    "gelu_tanh": FunctionCost(adds=1, macs=4 + EXP + RECIPROCAL + 1 + 2),
    # x / (1 + exp(−1.702 x))
    "gelu_sigmoid": FunctionCost(adds=1, macs=1 + EXP + RECIPROCAL + 1),
    "silu": FunctionCost(adds=1, macs=EXP + RECIPROCAL + 1),
    "sigmoid": FunctionCost(adds=1, macs=EXP + RECIPROCAL),
    "tanh": FunctionCost(adds=1, macs=EXP + RECIPROCAL + 1),
    "relu": FunctionCost(adds=1),
    # an activation that has no line of its own here: as dear as the dearest that has
    "function": FunctionCost(macs=1 + 1 + RECIPROCAL + 5 + 1 + EXP + 1 + 2),
    # residual sums, biases, position embeddings; means; gates and scalings; what is none of these
    "add": FunctionCost(adds=1, differential=False),
    "sum": FunctionCost(adds=1, row_macs=1, differential=False),
    "multiply": FunctionCost(macs=1),
    # a stage of a rotation; its input changes by differences, whose rotation is the difference
    "hadamard": FunctionCost(adds=1, differential=False),
    "other": FunctionCost(macs=1),
}


@dataclass(frozen=True)
class EnergyModel(Plain):
    """Energies in picojoules. The defaults are the paper's two, and others from the paper's own source.

    Attributes:
        accumulate_pj, mac_pj: 32-bit float addition, and multiplication with addition (3.7 + 0.9). The first is the
            paper's α.
        int_add_pj: of 32-bit integers; an adder's energy grows with its width.
        int_mult_pj: of 8-bit integers; a multiplier's energy grows with the product of its operands' widths.
        accumulator_bits: width of the sums of integer products, and of a membrane potential.
        update_adds: additions for looking at a neuron: what arrived is added, the sum is compared.
        quantize_macs: multiplications for the code of a quantizer.
        step_s: duration of a step, for the paper's power.
        memory: "off"; "sram": every operand comes from a memory of 8 KB; "dram": weights come from outside.
        sram_pj, dram_pj: per access of 64 bits.
        functions: kind → cost; kinds that are not named keep the costs in `FUNCTIONS`.

    Example:
        >>> model = EnergyModel()
        >>> round(model.int_mac_pj(8, 8), 3), round(model.int_mac_pj(32, 32), 3), round(model.int_mac_pj(5, 8), 3)
        (0.3, 3.3, 0.225)
        >>> EnergyModel.from_json(model.to_json()) == model
        True
        >>> EnergyModel(memory="tape")
        Traceback (most recent call last):
            ...
        spikezip.errors.InputError: memory='tape': choose one of off, sram, dram
    """

    accumulate_pj: float = 0.9
    mac_pj: float = 4.6
    int_add_pj: float = 0.1
    int_mult_pj: float = 0.2
    accumulator_bits: int = 32
    update_adds: int = 2
    quantize_macs: int = 1
    step_s: float = 1e-3
    memory: str = "off"
    sram_pj: float = 10.0
    dram_pj: float = 1300.0
    functions: dict[str, FunctionCost] = field(default_factory=dict)
    source: str = HOROWITZ

    def check(self) -> None:
        if self.memory not in MEMORIES:
            raise InputError(f"memory={self.memory!r}: choose one of {', '.join(MEMORIES)}")
        for name in ("accumulate_pj", "mac_pj", "int_add_pj", "int_mult_pj", "sram_pj", "dram_pj"):
            if getattr(self, name) < 0:
                raise InputError(f"{name}={getattr(self, name)!r}: an energy cannot be negative")
        if self.step_s <= 0:
            raise InputError(f"step_s={self.step_s!r}: a step takes some time")
        unknown = [kind for kind in self.functions if kind not in FUNCTIONS]
        if unknown:
            raise InputError(f"functions: no function is called {unknown[0]!r}; known: {', '.join(FUNCTIONS)}")

    def function(self, kind: str) -> FunctionCost:
        cost = self.functions.get(kind) or FUNCTIONS.get(kind)
        if cost is None:
            raise ConfigError(f"no cost is known for the function {kind!r}; known: {', '.join(FUNCTIONS)}")
        return cost

    def int_accumulate_pj(self) -> float:
        """An integer addition as wide as the accumulator."""
        return self.int_add_pj * self.accumulator_bits / 32

    def int_mac_pj(self, left_bits: int, right_bits: int) -> float:
        """An integer multiplication of these widths, added up."""
        return self.int_mult_pj * left_bits * right_bits / 64 + self.int_accumulate_pj()

    def bit_pj(self, memory: str) -> float:
        """Of a bit read from or written to a memory."""
        return {"off": 0.0, "sram": self.sram_pj, "dram": self.dram_pj}[memory] / 64
