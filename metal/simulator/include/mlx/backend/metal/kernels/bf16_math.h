// In place of MLX's: its overloads for bfloat are in simulator/math.h and simulator/simdgroup.h already.
#pragma once
