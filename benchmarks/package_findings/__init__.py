"""Defects of released packages, each shown without gradoracle's judgement.

    python -m benchmarks.package_findings              (all; the packages have to be installed)
    python -m benchmarks.package_findings liger fla    (the modules of this name)
    python -m benchmarks.package_findings --device cuda    (on a GPU)

Every function of `liger`, `fla`, `pytorch` and `others` calls a public function of a package on a few numbers,
computes the same in float64 or mpmath and returns the figures that docs/findings.md quotes. Triton kernels run in
gradoracle's interpreter; nothing else of gradoracle takes part. On a GPU nothing of gradoracle takes part: each finding
has a process of its own, and those about accesses run under compute-sanitizer, with a block of memory for each tensor.
"""
