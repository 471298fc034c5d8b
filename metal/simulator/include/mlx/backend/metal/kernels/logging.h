// In place of MLX's: nothing is logged.
#pragma once
