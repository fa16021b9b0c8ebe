"""The packages of gradoracle: every folder with an ``__init__`` under three roots. All else stands in pyproject.toml.

``kernels/`` and ``properties/`` are imported as ``gradoracle.kernels`` and ``gradoracle.properties``, which setuptools
finds by no setting of its own; a list by hand would have to be edited for every new family.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import find_packages, setup

ROOTS = {"gradoracle": "gradoracle", "gradoracle.kernels": "kernels", "gradoracle.properties": "properties"}
HERE = Path(__file__).resolve().parent

setup(
    package_dir=ROOTS,
    packages=[
        name
        for package, folder in ROOTS.items()
        for name in (package, *(f"{package}.{inner}" for inner in find_packages(str(HERE / folder))))
    ],
)
