"""The gate: are the kernels of this tree as correct as those of its base, by the base's own definitions?"""
