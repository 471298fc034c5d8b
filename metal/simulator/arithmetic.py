"""What Metal leaves open about arithmetic, as a choice for a launch.

A kernel whose bits must not depend on the number of rows has to keep that promise under every
choice: the compiler may or may not fuse a multiplication and an addition, the order of sums inside
a matrix operation and inside ``simd_sum`` is not documented, transcendental functions differ by
chip, and subnormals may be flushed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arithmetic:
    """One model of a GPU's arithmetic; the default is the one nearest to Apple's compilers.

    contract       fuse multiplication and addition where the source lets the compiler
    tree_mma       sum a matrix operation's eight products pairwise, not one by one with fma
    sequential_sum ``simd_sum`` adds lanes in order instead of a butterfly over xor 1, 2, 4, 8, 16
    exp_ulp        units in the last place added to exp, log, sin, ... (-1, 0 or 1)
    flush          subnormal numbers are zero, in operands and results
    """

    contract: bool = True
    tree_mma: bool = False
    sequential_sum: bool = False
    exp_ulp: int = 0
    flush: bool = False


DEFAULT = Arithmetic()

#: The models under which row-invariance is tested: each choice on its own, and all together.
MODELS: dict[str, Arithmetic] = {
    "default": DEFAULT,
    "uncontracted": Arithmetic(contract=False),
    "tree": Arithmetic(tree_mma=True, sequential_sum=True),
    "exp above": Arithmetic(exp_ulp=1),
    "exp below": Arithmetic(exp_ulp=-1),
    "flush": Arithmetic(flush=True),
    "all": Arithmetic(False, True, True, 1, True),
}
