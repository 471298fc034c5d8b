"""The trainer: data from the target itself, drafters from data, and figures that can be trusted."""
