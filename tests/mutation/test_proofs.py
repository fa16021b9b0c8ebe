"""The proofs that are shipped are of mutants that there are, and say why."""

from __future__ import annotations

import pytest

from gradoracle.model.errors import UsageError
from gradoracle.mutation.plant import mutants_of
from gradoracle.mutation.proofs import proofs_beside, read_proofs
from gradoracle.mutation.sources import sources_of
from gradoracle.project.shipped_names import family_names
from gradoracle.project.target import resolve


@pytest.mark.parametrize("family", family_names())
def test_each_proof_is_of_a_mutant_that_there_is(family):
    proofs = read_proofs(proofs_beside(family))
    keys = {m.key for source in sources_of(resolve(family), ()) for m in mutants_of(source)}
    assert proofs and set(proofs) <= keys
    assert all(len(proof.split()) >= 15 for proof in proofs.values()), "a proof says why"


@pytest.mark.parametrize("family", family_names())
def test_the_sources_of_a_family_are_its_folder_and_the_tiles_that_it_shares(family):
    modules = {source.module for source in sources_of(resolve(family))}
    own = {f"gradoracle.kernels.{family}.tiles", f"gradoracle.kernels.{family}.launch"}
    assert own <= modules
    assert ("gradoracle.kernels.tiles" in modules) == (family != "semicrf")
    assert "gradoracle.kernels.arguments" not in modules


def test_of_tiles_that_families_share_the_functions_that_one_uses_are_mutated():
    for family, used in (("lightning", {"below"}), ("sdpa", {"statistics", "visible_keys"})):
        (shared,) = [each for each in sources_of(resolve(family)) if each.module == "gradoracle.kernels.tiles"]
        assert used <= {each.function for each in mutants_of(shared)}
        assert all(each.function != "statistics" for each in mutants_of(shared)) == (family == "lightning")


def test_proofs_are_read_and_those_without_a_mutant_or_a_reason_refused(tmp_path):
    file = tmp_path / "proofs.toml"
    file.write_text('[[equivalent]]\nmutant = "0123456789"\nproof = """\nmasked by the store\n"""\n')
    assert read_proofs(file) == {"0123456789": "masked by the store"}
    assert read_proofs(None) == {} and proofs_beside("no_such_family") is None
    file.write_text('[[equivalent]]\nmutant = "0123456789"\nproof = " "\n')
    with pytest.raises(UsageError, match=r"entry 1 has no proof; expected mutant and proof$"):
        read_proofs(file)
    for text in ("mutant = '1'", "proof = 'x'"):
        file.write_text(f"[[equivalent]]\n{text}\n")
        with pytest.raises(UsageError, match=r"entry 1 has no (proof|mutant)"):
            read_proofs(file)
    file.write_text("equivalent = [\n")
    with pytest.raises(UsageError, match="is not valid TOML"):
        read_proofs(file)
    with pytest.raises(UsageError, match="no such file"):
        read_proofs(tmp_path / "missing.toml")
