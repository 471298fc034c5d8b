"""`dflash-mlx train`: its flags, its stages, and what a person sees of them."""
