"""How fast each way to decode is, on the same prompts, in turns: `dflash-mlx bench`."""
