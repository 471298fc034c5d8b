"""One operation a file: what it computes, its plain-MLX twin, and its Metal call."""
