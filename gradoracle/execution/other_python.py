"""Other Python: an interpreter in which kernels run in place of this one, with its own PyTorch and Triton."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from gradoracle.host.homes import ALONE
from gradoracle.model.errors import UsageError
from gradoracle.model.versions import public
from gradoracle.model.wording import printable

_OLDEST = "3.10"
NEEDED = ("numpy", "torch")
_LIMIT = 120.0  # seconds: PyTorch of a cold disk may take one minute
_FACTS = """\
import json
from importlib import metadata
facts = {"python": "%d.%d.%d" % sys.version_info[:3]}
for name in ("torch", "triton", "numpy", "numba"):
    try:
        facts[name] = metadata.version(name)
    except Exception:
        pass
"""
_GPUS = """\
import torch
facts["gpus"] = json.dumps([torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())])
"""
_SHOWN = 'sys.stdout.write("\\n" + json.dumps(facts))\n'


@dataclass(frozen=True)
class OtherPython:
    """What an interpreter has.

    Attributes:
        path: of the interpreter.
        versions: of itself, as ``python``, and of its packages.
        gpus: their names, as its PyTorch sees them; () where they were not asked for.
    """

    path: str
    versions: Mapping[str, str]
    gpus: tuple[str, ...] = ()

    @property
    def is_too_old(self) -> bool:
        """Whether it cannot import gradoracle."""
        own, least = (tuple(map(int, each.split(".")[:2])) for each in (self.versions["python"], _OLDEST))
        return own < least

    @property
    def words(self) -> str:
        """It in one line: ``Python 3.12.3, torch 2.11.0, triton 3.6.0``; versions without their local part."""
        shown = ("python", "torch", "triton")
        found = (f"{name} {public(self.versions[name])}" for name in shown if name in self.versions)
        return ", ".join(found).replace("python", "Python", 1)


def other_python(path: str, *, has_gpus: bool = False) -> OtherPython:
    """What an interpreter has, which can host kernels.

    Args:
        path: of the interpreter.
        has_gpus: whether its GPUs are asked for, which imports its PyTorch.

    Raises:
        UsageError: it cannot be run, is too old, or lacks a package.
    """
    found = probed(path)
    if found.is_too_old:
        raise UsageError(f"--python {path} is Python {found.versions['python']}; expected Python {_OLDEST} or later")
    if missing := [name for name in NEEDED if name not in found.versions]:
        raise UsageError(
            f"--python {path} lacks {' and '.join(missing)}; expected an environment with "
            f"{' and '.join(NEEDED)}, and what the kernel imports"
        )
    return probed(path, has_gpus=True) if has_gpus else found


@functools.cache
def probed(path: str, *, has_gpus: bool = False) -> OtherPython:
    """What an interpreter has.

    Args:
        path: of the interpreter.
        has_gpus: whether its GPUs are asked for, which imports its PyTorch.

    Raises:
        UsageError: it cannot be run, or gives no answer.
    """
    program = f"{ALONE}{_FACTS}{_GPUS if has_gpus else ''}{_SHOWN}"
    try:
        done = subprocess.run([path, "-c", program], capture_output=True, stdin=subprocess.DEVNULL, timeout=_LIMIT)
        facts = json.loads(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
        versions = {str(name): str(value) for name, value in facts.items()}
        gpus = tuple(map(str, json.loads(versions.pop("gpus", "[]"))))
        found = OtherPython(path, versions, gpus)
        _ = found.is_too_old  # reads the version
        return found
    except subprocess.TimeoutExpired:
        raise UsageError(f"--python {path} did not say within {_LIMIT:.0f} s which packages it has") from None
    except OSError as error:
        raise UsageError(f"--python {path} cannot be run: {error.strerror}; expected a Python interpreter") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = f"it ends with {printable(said[-1], 100)!r}" if said else "it gives no answer"
        raise UsageError(f"--python {path} cannot host kernels: {why}; expected a Python interpreter") from None
