"""Tuning: what a program spills is counted where it costs, in its innermost loops."""

from __future__ import annotations

import importlib

from places import ROOT

SASS = """
        /*0000*/                   STL [R1], R4 ;                       /* 0x0000000401007387 */
                                                                        /* 0x000fe20000100800 */
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/                   LDL R6, [R1] ;
        /*0030*/                   STL.64 [R1+0x8], R6 ;
        /*0040*/              @!P0 BRA 0x10 ;
        /*0050*/                   LDL.LU R5, [R1+0x4] ;
        /*0060*/               @P1 BRA 0x0 ;
        /*0070*/                   BRA 0x70;
"""


def test_spills_are_counted_in_innermost_loops(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    tuning = importlib.import_module("benchmarks.tuning")
    assert tuning.spilled(SASS) == 2  # what is outside of the inner loop, before it and behind it, is not
    assert tuning.spilled(SASS.replace("@!P0 BRA 0x10", "NOP")) == 4
    assert tuning.spilled(SASS.replace("BRA 0x10", "BRA 0x50").replace("BRA 0x0 ", "BRA 0x70 ")) == 0
