"""Bits of numbers inside of compiled loops. Imported by those alone: it needs numba."""

from typing import Any

from numba import types
from numba.extending import intrinsic


def _reinterpret(source: Any, target: Any) -> Any:
    """A function for compiled loops that takes the bits of one type of number for another."""

    def typed(_: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(target))

        return target(source), generate

    return intrinsic(typed)


float32_of = _reinterpret(types.int32, types.float32)
float64_of = _reinterpret(types.int64, types.float64)
bits_of32 = _reinterpret(types.float32, types.int32)
bits_of64 = _reinterpret(types.float64, types.int64)
