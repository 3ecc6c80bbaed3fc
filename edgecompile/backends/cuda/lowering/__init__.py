"""Graph rewrites for GPUs, before Inductor sees a program."""
