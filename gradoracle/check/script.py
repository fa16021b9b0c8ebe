"""Script: a case as a Python file that needs torch only: tensors and truth as literals, the kernel by import path."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import build
from gradoracle.check import worker
from gradoracle.check.evidence import Evidence
from gradoracle.check.setup import Setup
from gradoracle.check.usable_case import require_case
from gradoracle.execution import device as devices
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.case import Case, parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError
from gradoracle.model.property import matches
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.exact.graph import UnsupportedOperator
from gradoracle.oracle.truth import Oracle
from gradoracle.project.definition import family_for

MOST_NUMBERS = 2000  # written as hexadecimal floats; above, a tensor's bytes are written in base 64
MOST_BYTES = 1 << 23  # in the whole script
_COLUMNS = 110
# of the derivatives that a property needs, the first is shown
_ORDER = (Derivative.HVP, Derivative.JVP, Derivative.VJP, Derivative.FORWARD)

_HEADER = '''\
"""{title}

{case}

Prints each of the kernel's tensors against the truth, and exits with 1 where one is wrong; written by gradoracle, needs
torch and the kernel only.
"""

import base64
import importlib
import importlib.util
import os
import sys

{environment}import torch


def tensor(dtype, shape, stride, offset, text):
    """A tensor from its numbers (hexadecimal floats or integers) or its bytes (base 64), laid out as it was."""
    if text.startswith("base64:"):
        data = bytearray(base64.b64decode("".join(text[7:].split())))
        numbers = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    elif dtype.is_floating_point:
        numbers = torch.tensor([float.fromhex(word) for word in text.split()], dtype=torch.float64).to(dtype)
    else:
        numbers = torch.tensor([int(word) for word in text.split()], dtype=dtype)
    storage = torch.zeros(offset + numbers.numel(), dtype=dtype, device="{device}")
    storage[offset:] = numbers
    return storage.as_strided(shape, stride, offset)


def load(place, name):
    """The kernel: ``place`` is a module or a file."""
    if place.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec = importlib.util.spec_from_file_location("kernel_under_test", place)
        found = importlib.util.module_from_spec(spec)
        sys.modules["kernel_under_test"] = found
        spec.loader.exec_module(found)
    else:
        found = importlib.import_module(place)
    for part in name.split("."):
        found = getattr(found, part)
    return found

'''

_INTERPRET = """\
os.environ["TRITON_INTERPRET"] = "1"
try:  # Triton's own interpreter gets bfloat16 and tf32 wrong; gradoracle's is used where it is installed
    from gradoracle.host import interpreter

    interpreter.activate()
except ImportError:
    pass

"""

_CALLS = {
    "forward": """
with torch.no_grad():
    outputs = call(list(inputs.values()))
found = dict(zip({outputs!r}, outputs))
""",
    "vjp": """
leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs.values()]
outputs = call(leaves)
primals = [t for t in leaves if t.requires_grad]
gradients = torch.autograd.grad(outputs, primals, list(cotangents.values()), allow_unused=True)
found = dict(zip({outputs!r}, outputs)) | dict(zip({names!r}, gradients))
""",
    "jvp": """
import torch.autograd.forward_ad as forward_ad

with forward_ad.dual_level():
    own = {{n: t.contiguous() if 0 in t.stride() else t for n, t in inputs.items()}}  # no dual of shared memory
    duals = [forward_ad.make_dual(t, tangents[n]) if n in tangents else t for n, t in own.items()]
    found = dict(zip({names!r}, (forward_ad.unpack_dual(output).tangent for output in call(duals))))
""",
    "hvp": """
leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs.values()]
primals = [t for t in leaves if t.requires_grad]
gradients = torch.autograd.grad(call(leaves), primals, list(cotangents.values()), create_graph=True)
products = torch.autograd.grad(gradients, primals, list(tangents.values()), allow_unused=True)
found = dict(zip({names!r}, products))
""",
}

_COMPARE = """
wrong = 0
for name, true in truth.items():
    got = found[name]
    if got is None:
        print(f"{name}: the kernel returned None")
        wrong += 1
        continue
    got = got.detach().to("cpu", torch.float64)
    error = (got - true).abs().nan_to_num(nan=float("inf"))
    in_sigma = torch.where(error > 0, error / sigma[name], error)
    flat = int(in_sigma.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape)]
    wrong += int((in_sigma > 8).sum())
    print(
        f"{name}: worst element {index}: got {got.flatten()[flat]:.9g}, true {true.flatten()[flat]:.9g}, "
        f"error {error.flatten()[flat]:.3g} = {in_sigma.flatten()[flat]:.3g} sigma; "
        f"{int((in_sigma > 8).sum())} of {got.numel()} elements are beyond 8 sigma"
    )
sys.exit(1 if wrong else 0)
"""


def reproduce(
    line: str,
    *,
    property: str = "*",
    device: str | None = None,
    oracle: str = "auto",
    contracts: Mapping[str, str] | None = None,
    family: str | None = None,
    python: str | None = None,
) -> str:
    """The text of a script that runs the kernel on one case and prints its tensors against the truth.

    Args:
        line: a case line.
        property: a glob; the property it names decides which derivative is shown (default: forward and VJP).
        device: cpu or cuda; by default that of the case.
        oracle: the reading that gives the truth.
        contracts: dtype -> preset; by default the kernel's own.
        family: the value of --family; None: the family of the line.
        python: as of ``Request``.

    Raises:
        UsageError: the line, its target or the property cannot be resolved; the tensors are too large; the kernel has
            no name.
    """
    try:
        text, where, case = parse(line)
    except ValueError as error:
        raise UsageError(str(error)) from None
    chosen = devices.choose(device or where.partition(":")[0], python=python)
    judge = family or family_for(line, text, case.family)
    setup = Setup(text, judge, chosen, oracle, dict(contracts or {}), {}, python=python)
    found = worker.resolved(setup)
    try:
        return _of_case(line, case, found, property)
    finally:
        found.host.close()


def _of_case(line: str, case: Case, found: worker.Resolved, property: str) -> str:
    text, defined, kernels, properties = found.setup.target, found.family, found.kernels, found.properties
    chosen, oracle = found.setup.device, found.setup.oracle
    if len(kernels) > 1:
        raise UsageError(f"{text} has the kernels {', '.join(kernels)}; name one in the case line, as {text}:KERNEL")
    (kernel,) = kernels.values()
    require_case(case, defined, kernel)
    defined = defined.at(case.dims)
    title, derivative = f"{kernel.name} against the definition of {defined.name}.", Derivative.VJP
    if property != "*":
        matching = [prop for name, prop in properties.items() if matches(name, property)]
        if not matching:
            raise UsageError(f"no property of {defined.name} matches {property!r}; see gradoracle list")
        title = matching[0].statement
        derivative = next((need for need in _ORDER if need in matching[0].needs), Derivative.FORWARD)
    place = found.place(kernel.name)
    if found.setup.hosted is not None and found.setup.hosted.parameters:
        raise UsageError(f"{text} is a module, whose parameters are inputs here; a script cannot set them")
    evidence = Evidence(
        case,
        build(case, defined.signature, domains=defined.domains),
        KernelRunner(defined, kernel, host=found.host, device=chosen),
        Oracle(defined, oracle),
    )
    names = evidence.names(derivative)
    outputs = evidence.names(Derivative.FORWARD)
    shown = [(derivative, name) for name in names]
    if derivative is Derivative.VJP:
        shown = [(Derivative.FORWARD, name) for name in outputs] + shown
    sample = evidence.sample
    try:
        require_room(sample.inputs.values(), sample.cotangents.values(), sample.tangents.values())
        truths = {name: evidence.truths(each)[name].value for each, name in shown}
        sigmas = {name: evidence.allowance(each, name).sigma for each, name in shown}
    except (Unavailable, Undefined, UnsupportedOperator) as reason:
        raise UsageError(f"the true values of this case cannot be computed: {reason}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    dropped = {name for name, values in kernel.options.items() if values == ()}
    try:
        return reproduction(
            title=title,
            case=line,
            place=place,
            inputs=sample.inputs,
            cotangents=sample.cotangents,
            tangents=sample.tangents,
            options={name: value for name, value in sample.options.items() if name not in dropped},
            outputs=outputs,
            derivative=derivative.value,
            names=() if derivative is Derivative.FORWARD else names,
            truths=truths,
            sigmas=sigmas,
            keyword={spec.name for spec in defined.signature.inputs if spec.keyword},
            device=chosen,
            interpret=chosen == "cpu",
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def reproduction(
    *,
    title: str,
    case: str,
    place: tuple[str, str],
    inputs: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
    tangents: Mapping[str, Tensor],
    options: Mapping[str, Any],
    outputs: Sequence[str],
    derivative: str,
    names: Sequence[str],
    truths: Mapping[str, Tensor],
    sigmas: Mapping[str, Tensor],
    keyword: Collection[str] = (),
    device: str = "cpu",
    interpret: bool = False,
) -> str:
    """The text of a script that reproduces one case.

    Args:
        title: the property in a sentence.
        case: the case line.
        place: the kernel as (module or file, attribute).
        inputs: by name, in the order of the call; float ones are differentiated. Strides and offsets are kept.
        cotangents: one for each float output, in order.
        tangents: one for each float input, in order.
        options: plain values, passed by keyword.
        outputs: names of the outputs, in order.
        derivative: forward, vjp, jvp or hvp; made by ``torch.autograd``.
        names: the names of the derivative's tensors beyond the outputs, in order: ``dq``, ``jvp.o``, ``hvp.q``.
        truths: float64, by the names above; only these are compared.
        sigmas: the standard deviations of rounding, same names and shapes.
        keyword: inputs that are passed by keyword.
        device: the device of the inputs.
        interpret: whether Triton must run without a GPU.

    Raises:
        ValueError: the tensors are too large for a script, or an option is no plain value.
    """
    require_room(*(each.values() for each in (inputs, cotangents, tangents, truths, sigmas)))
    for name, value in options.items():
        if not isinstance(value, (bool, int, float, str, type(None))):
            raise ValueError(f"option {name} is {value!r}, which a script cannot contain; expected a plain value")
    header = _HEADER.format(
        title=_docstring(title), case=_docstring(case), device=device, environment=_INTERPRET if interpret else ""
    )
    parts = [header]
    used = {"inputs": inputs}
    if derivative in ("vjp", "hvp"):
        used["cotangents"] = cotangents
    if derivative in ("jvp", "hvp"):
        used["tangents"] = tangents
    parts += [_dictionary(name, mapping) for name, mapping in used.items()]
    parts += [_dictionary("truth", truths, "cpu"), _dictionary("sigma", sigmas, "cpu")]
    parts.append(
        f"options = {dict(options)!r}\n"
        f"kernel = load({place[0]!r}, {place[1]!r})\n\n\n"
        "def call(tensors):\n"
        f"    by_name = dict(zip(inputs, tensors))\n"
        f"    positional = [t for name, t in by_name.items() if name not in {sorted(keyword)!r}]\n"
        f"    named = {{name: t for name, t in by_name.items() if name in {sorted(keyword)!r}}}\n"
        "    outputs = kernel(*positional, **named, **options)\n"
        "    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)\n"
        f"    expected = {list(outputs)!r}\n"
        "    if len(outputs) != len(expected):\n"
        '        raise SystemExit(f"the kernel returned {len(outputs)} tensors, expected {expected}")\n'
        "    return outputs\n\n"
    )
    parts.append(_CALLS[derivative].format(outputs=list(outputs), names=list(names)))
    parts.append(_COMPARE)
    return "".join(parts)


def require_room(*groups: Iterable[Tensor]) -> None:
    """Refuse tensors that are too large for a script.

    Raises:
        ValueError: it says how many bytes they take and how many fit.
    """
    size = sum(_span(tensor) * tensor.element_size() for group in groups for tensor in group)
    if size > MOST_BYTES:
        raise ValueError(f"the tensors of this case take {size} bytes, at most {MOST_BYTES} fit into a script")


def _dictionary(name: str, tensors: Mapping[str, Tensor], device: str = "") -> str:
    """``name = {...}`` of tensor literals."""
    suffix = f'.to("{device}")' if device else ""
    entries = "".join(f"    {key!r}: {_literal(tensor)}{suffix},\n" for key, tensor in tensors.items())
    return f"{name} = {{\n{entries}}}\n"


def _literal(tensor: Tensor) -> str:
    """A call of the script's own ``tensor``: the stretch of memory that a tensor looks at, and how it looks at it."""
    view = tensor.detach()
    flat = view.as_strided((_span(view),), (1,), view.storage_offset()).cpu()
    if flat.numel() > MOST_NUMBERS:
        text = "base64:" + base64.b64encode(flat.contiguous().view(torch.uint8).numpy().tobytes()).decode()
    elif flat.is_floating_point():
        text = " ".join(value.hex() for value in flat.double().tolist())
    else:
        text = " ".join(str(int(value)) for value in flat.tolist())
    lines = textwrap.wrap(text, _COLUMNS) or [""]
    literal = repr(lines[0]) if len(lines) == 1 else '"""\n' + "\n".join(lines) + '\n    """.strip()'
    return f"tensor({view.dtype}, {tuple(view.shape)}, {view.stride()}, {view.storage_offset()}, {literal})"


def _span(tensor: Tensor) -> int:
    """How many elements lie between the first and the last that a tensor looks at."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")
