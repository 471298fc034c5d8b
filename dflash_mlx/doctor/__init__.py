"""Is this machine fit, and does MLX compute right on it: `dflash-mlx doctor`."""
