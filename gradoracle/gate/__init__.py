"""The gate: are the kernels of this tree as right as those of its base, judged by the base's own judge?"""
