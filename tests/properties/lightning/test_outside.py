"""Linear attention in plain PyTorch and in a released package (examples): right ones hold on the CPU, faults do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import slow

from gradoracle.cases.coverage import wanted_goals
from gradoracle.model.dims import sizes
from gradoracle.model.verdict import Report
from gradoracle.project.target import resolve
from tests.properties import outside
from tests.properties.outside import DTYPES, EXAMPLES, assert_holds, assert_violated, changed

pytestmark = pytest.mark.usefixtures("unshrunk")
FILE, FLA = EXAMPLES / "torch_lightning.py", EXAMPLES / "fla_lightning.py"
EAGER = {"bfloat16": "eager-bf16", "float16": "eager-fp16"}
SMALL = {"N": sizes(1, 100), "D": sizes(1, 32), "Dv": sizes(1, 32)}


def checked(file: Path, name: str, *dtypes: str, eager: bool = True, **fields: object) -> Report:
    contracts = {dtype: preset for dtype, preset in EAGER.items() if eager and dtype in dtypes}
    return outside.checked("lightning", file, name, *dtypes, contracts=contracts, **fields)


@pytest.mark.parametrize("name", ["quadratic", "chunked"])
def test_plain_ones_hold_in_every_dtype(name: str) -> None:
    report = checked(FILE, name, *DTYPES, eager=name == "chunked")  # quadratic declares its contracts itself
    assert_holds(report, *DTYPES)
    met = {goal for goal, count in report.goals.items() if count}
    assert met >= {"initial_state given", "return_state = True", "N has 3 tiles", "D < Dv", "D > Dv"}


@pytest.mark.parametrize(("name", "long"), [("quadratic", False), ("chunked", True)])
def test_a_square_is_not_asked_for_sequences_that_fit_no_memory(name: str, long: bool) -> None:
    target = resolve(f"{FILE}:{name}", "lightning")
    expected = wanted_goals(target.family, target.kernels[0], DTYPES, 126)
    assert ("N > 100 000" in expected) is long and "N has 3 tiles" in expected


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("quadratic", "torch.tril(q @ k.mT)", "torch.tril(q @ k.mT, -1)"),
        slow("quadratic", "(q.float() @ initial_state)", "(q.float() @ initial_state.detach())"),
        ("chunked", "pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))", "sums"),
        slow("chunked", "before = before + initial_state[:, :, None]", "before = before - initial_state[:, :, None]"),
        slow("chunked", "state = k.mT.float() @ v.float()", "state = k[:, :, 1:].mT.float() @ v[:, :, 1:].float()"),
    ],
)
def test_a_fault_is_caught_on_the_same_cases(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    file = changed(FILE, right, wrong, tmp_path)
    assert_violated(checked(file, name, "float32", eager=False, examples=4, dims=SMALL))


class TestFla:
    """fla-core's references, where it is installed: ``pip install --no-deps fla-core einops``."""

    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        pytest.importorskip("fla", reason="fla-core is not installed (pip install --no-deps fla-core einops)")
        pytest.importorskip("einops", reason="einops is not installed (pip install --no-deps fla-core einops)")

    def test_the_recurrent_one_holds_in_every_dtype(self) -> None:
        assert_holds(checked(FLA, "recurrent", *DTYPES, eager=False, dims={"N": sizes(1, 100)}), *DTYPES)

    def test_the_chunked_one_holds_in_every_dtype(self) -> None:
        report = checked(FLA, "chunked", *DTYPES)
        assert_holds(report, *DTYPES)
        assert "initial_state given" not in report.goals, "it takes no state"

    def test_with_its_own_scale_it_is_another_operator(self, tmp_path: Path) -> None:
        file = tmp_path / "kernel.py"
        file.write_text(FLA.read_text().replace("scale=1.0", "scale=None"))
        assert checked(file, "chunked", "float32", examples=8).exit_code == 1
