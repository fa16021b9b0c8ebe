"""Randomness: what is random in the kernels of a family, as the family declares it."""

from __future__ import annotations

from dataclasses import dataclass

from gradoracle.model.signature import Signature

LEVELS = 1 << 23


@dataclass(frozen=True)
class Randomness:
    """The random numbers of a family's kernels: what they are made from, and what they decide.

    Attributes:
        seed: the integer input, or the option, that they are made from; equal seeds give equal numbers.
        drop: the option that is the probability with which an element is dropped; "" where none is.
        shown: the tensor that shows which elements are dropped: an output that is 0 exactly there if every float input
            is 1 (elementwise dropout); or an integer input that is 0 there (a mask, which a kernel may reveal). "":
            none does.
        rounded: the output that is rounded at random to one of the two neighbours of its value; "" where none is.
        mean: whether the definition gives the mean over seeds, since it does not know the numbers: the x of dropout. No
            single call then has a truth; what is dropped is read from the output that shows it.
        levels: the number of equal steps in which the kernel's uniform numbers lie: a probability may be off by one.
            2^23 of float32; 256 where one byte is compared.

    Raises:
        ValueError: something is dropped and nothing shown, or the reverse; fewer than 2 levels.
    """

    seed: str
    drop: str = ""
    shown: str = ""
    rounded: str = ""
    mean: bool = False
    levels: int = LEVELS

    def __post_init__(self) -> None:
        if self.shown and not self.drop:
            raise ValueError(
                f"Randomness has shown={self.shown!r} and no drop; expected the option that is its probability"
            )
        if self.levels < 2:
            raise ValueError(f"Randomness has {self.levels} levels; expected 2 or more")

    def require(self, own: str, signature: Signature) -> None:
        """Check that a family has what is named.

        Raises:
            ValueError: it has not.
        """
        whole = [spec.name for spec in signature.inputs if spec.kind == "int"]
        outputs = [spec.name for spec in signature.outputs]
        options = [spec.name for spec in signature.options]
        known = {
            "seed": (self.seed, "integer inputs and options", [*whole, *options]),
            "drop": (self.drop, "options", options),
            "shown": (self.shown, "float outputs and integer inputs", [*outputs, *whole]),
            "rounded": (self.rounded, "float outputs", outputs),
        }
        for field, (name, kind, names) in known.items():
            if name not in names and (name or field == "seed"):
                expected = f"expected one of its {kind} {', '.join(names)}" if names else f"it has no {kind}"
                raise ValueError(f"family {own}: random has {field}={name!r}; {expected}")

    def without_truth(self, tensor: str) -> str:
        """Why a tensor of one call has no truth; "" where it has."""
        if self.mean:
            return "the definition gives the mean over seeds, so no single call has a truth"
        return (
            f"{tensor} is rounded at random, so no single call has one truth"
            if tensor and tensor == self.rounded
            else ""
        )

    @property
    def words(self) -> str:
        """What is declared, as a note of a report."""
        said = [f"random numbers come from {self.seed}"]
        if self.drop:
            seen = f"{self.shown} shows which" if self.shown else "no tensor shows which"
            said.append(f"elements are dropped with probability {self.drop}, and {seen}")
        if self.rounded:
            said.append(f"{self.rounded} is rounded at random")
        if self.mean:
            compared = "what it shows" if self.shown and self.drop else "relations alone"
            said.append(f"the definition gives the mean over seeds, so a call is judged by {compared}")
        return "; ".join(said)
