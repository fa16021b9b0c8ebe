"""Sizes: membership, intersection and the command line's way of writing them."""

from __future__ import annotations

import pytest

from gradoracle.model.dims import Sizes, choices, multiples, parse_sizes, sizes, written


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("T=1:100", (1, 100), (0, 101)),
        ("T=16:64:16", (16, 64), (17, 80)),
        ("D=64,128", (64, 128), (96,)),
        ("T=7", (7,), (6, 8)),
        ("T=1:200000", (200_000,), (200_001,)),
        ("*batch=0:2", (0, 2), (3,)),
        ("*batch=0,3", (0, 3), (1,)),
    ],
)
def test_a_domain_is_read_as_written(text, inside, outside):
    name, domain = parse_sizes(text)
    assert name == text.partition("=")[0]
    assert parse_sizes(written(name, domain)) == (name, domain)
    assert all(size in domain for size in inside)
    assert not any(size in domain for size in outside)


@pytest.mark.parametrize(
    "text",
    [
        "", "T", "T=", "T=a", "T=5:1", "T=1:2:3:4", "=4", "T=0", "T=17:20:16", "T=1.5", "T=0:4", "T=0,4", "*=1",
        "**b=1", "*batch=-1",
    ],
)  # fmt: skip
def test_a_malformed_domain_says_what_is_expected(text):
    with pytest.raises(ValueError, match="is invalid; expected NAME=SIZE"):
        parse_sizes(text)


def test_intersection_keeps_what_both_allow():
    assert multiples(16).intersect(sizes(1, 100)) == Sizes(16, 100, 16)
    assert choices(32, 48, 64).intersect(multiples(32)) == choices(32, 64)
    assert 100_003 in sizes(1, 64, large=200_000).intersect(sizes(1, 4096, large=150_000))
    with pytest.raises(ValueError, match="no size is in both"):
        choices(8).intersect(multiples(16))
    assert multiples(4).intersect(multiples(6, 24)) == Sizes(6, 24, 12)
    assert sizes(1, 200).intersect(sizes(100, 300)) == Sizes(100, 200)
    with pytest.raises(ValueError, match=r"no size is in both \{1 to 8\} and \{16 to 4096 in steps of 16\}"):
        sizes(1, 8).intersect(multiples(16))
    with pytest.raises(ValueError, match=r"no size is in both \{1 to 40\} and \{100 to 200\}"):
        sizes(1, 40).intersect(sizes(100, 200))


def test_sizes_beyond_the_ordinary_are_drawn_on_a_gpu_or_where_a_user_asks_for_them():
    domain = sizes(1, 320, large=131_072, large_on_gpu=1 << 20, asked=1 << 21)
    assert domain.on("cpu") is domain and domain.on("cuda").large == 1 << 20
    assert 1 << 21 in domain and (1 << 21) + 1 not in domain
    both = domain.intersect(sizes(1, 1000, asked=500_000))
    assert (both.maximum, both.large, both.large_on_gpu, both.asked) == (320, 1000, 0, 500_000)
    assert domain.intersect(sizes(1, 64)) == sizes(1, 64)
    assert domain.intersect(domain) == domain
    assert sizes(1, 64).on("cuda") == sizes(1, 64)


def test_an_empty_domain_is_refused():
    with pytest.raises(ValueError, match="no size fits"):
        Sizes(5, 4)
    with pytest.raises(ValueError, match="no size fits"):
        Sizes(-1, 4)
    with pytest.raises(ValueError, match="sizes must be at least 1"):
        choices(-1, 4)
