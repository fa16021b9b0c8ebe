"""Options: what each form means, and the one sentence for each mistake."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from gradoracle.cli import main
from gradoracle.model.dims import Sizes
from gradoracle.model.errors import UsageError
from gradoracle.project import outputs as outputs_of
from gradoracle.project import values
from gradoracle.project.outputs import Output, outputs, writable

FORMATS: dict[str, tuple[str, ...]] = {"terminal": (), "json": (), "junit": ()}


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.dtypes, "float32, bfloat16,float32", ("float32", "bfloat16")),
        (values.contracts, ["float32=tf32", "bfloat16=eager-bf16"], {"float32": "tf32", "bfloat16": "eager-bf16"}),
        (values.arguments, ["causal=True", "scale=-0.5", "mode='a=b'"], {"causal": True, "scale": -0.5, "mode": "a=b"}),
        (values.dims, ["T=1:4096", "D=64,128"], {"T": Sizes(1, 4096), "D": Sizes(choices=(64, 128))}),
        (values.workers, "auto", None),
        (values.workers, "0", 0),
        (values.shard, "2/4", (2, 4)),
        (values.seconds, 0.5, 0.5),
    ],
)
def test_what_is_given_is_read(read: Callable[[Any], Any], text: Any, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (values.dtypes, "float23", "--dtype 'float23' is unknown: did you mean float32? expected one of float32, "),
        (values.dtypes, "", "--dtype '' is unknown: expected one of"),
        (values.contracts, ["float32"], "--contract 'float32' is invalid; expected DTYPE=PRESET"),
        (values.contracts, ["float32=fp16"], "--contract float32=fp16: contract 'fp16' is for float16; for float32"),
        (values.contracts, ["int8=tf32"], "--contract int8=tf32: "),
        (values.contracts, ["float32=tf32", "float32=ieee32"], "--contract is given twice for float32"),
        (values.arguments, ["causal=true"], "--arg 'causal=true': expected a Python literal after =, such as True"),
        (values.arguments, ["2=3"], "'2' is not the name of an argument"),
        (values.arguments, ["causal"], "--arg 'causal' is invalid; expected NAME=VALUE"),
        (values.dims, ["T=0:4"], "--dim 'T=0:4' is invalid; expected NAME=SIZE"),
        (values.dims, ["T"], "--dim 'T' is invalid"),
        (values.dims, ["T=1", "T=2"], "--dim is given twice for T"),
        (values.workers, "many", "--workers 'many' is invalid; expected a number of processes, or auto"),
        (values.workers, "-1", "--workers must be at least 0, got -1"),
        (values.shard, "2", "--shard '2' is invalid; expected I/N"),
        (values.shard, "5/4", "--shard '5/4' is out of range; expected I/N with 1 <= I <= N"),
        (values.shard, "0/4", "--shard '0/4' is out of range"),
        (values.shard, "a/4", "--shard 'a' is invalid"),
        (partial(values.seconds, option="--call-seconds"), 0.0, "--call-seconds must be a positive number, got 0"),
        (values.seconds, -1.0, "--seconds must be a positive number, got -1"),
        (values.seconds, float("inf"), "--seconds must be a positive number, got inf"),
        (values.seconds, float("nan"), "--seconds must be a positive number, got nan"),
        (values.saved, "missing.pt", "--inputs missing.pt: no such file; expected tensors saved with torch.save"),
    ],
)
def test_each_mistake_is_one_sentence(read: Callable[[Any], Any], text: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("check sdpa", [Output("terminal")]),
        ("check sdpa --format json", [Output("json")]),
        ("check --format json --output {d}/a.json sdpa", [Output("json", Path("a.json")), Output("terminal")]),
        ("check --format=json --output={d}/a.json --format junit", [Output("json", Path("a.json")), Output("junit")]),
        (
            "check --format terminal --format junit --seed 3 --output {d}/b.xml",
            [Output("terminal"), Output("junit", Path("b.xml"))],
        ),
        ("check --property --format sdpa --format json", [Output("json")]),
        ("check --format json -- --format", [Output("json")]),
    ],
)
def test_an_output_belongs_to_the_format_before_it(words: str, expected: list[Output], tmp_path: Path) -> None:
    found = outputs(words.format(d=tmp_path).split(), FORMATS)
    assert [Output(o.format, o.path and Path(o.path.name)) for o in found] == expected
    assert list(tmp_path.iterdir()) == []  # trying a path out leaves nothing


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--format html", "--format 'html' is unknown: expected one of terminal, json, junit"),
        ("--output {d}/a", "--output {d}/a has no --format of its own; expected --format FORMAT --output {d}/a"),
        ("--format json --output {d}/a --output {d}/b", "--output {d}/b has no --format of its own"),
        ("--format json --format junit", "the formats json and junit cannot share standard output"),
        ("--format json --output {d}/a --format junit --output {d}/../{n}/a", "the same output file"),
        ("--format json --output {d}", "--output {d} cannot be written: is a directory"),
        ("--format json --output {d}/no/a", "--output {d}/no/a cannot be written: no such file or directory"),
    ],
)
def test_outputs_that_cannot_be_are_said_before_anything_runs(words: str, says: str, tmp_path: Path) -> None:
    names = {"d": tmp_path, "n": tmp_path.name}
    with pytest.raises(UsageError) as caught:
        outputs(words.format(**names).split(), FORMATS)
    assert says.format(**names) in str(caught.value)


def test_trying_a_path_out_leaves_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text("kept")
    assert writable("--output", str(file)) == file
    assert file.read_text() == "kept"


def test_each_option_without_a_value_is_known_as_one() -> None:
    """Or the word after it, such as --format, would be taken for its value."""
    command = typer.main.get_command(main.app)
    flags = {
        option
        for name in ("check", "gate", "merge", "mutate")
        for each in command.commands[name].params  # type: ignore[attr-defined]
        if getattr(each, "is_flag", False)
        for option in each.opts
        if option.startswith("--")
    }
    assert {"--fail-fast", "--no-cache"} <= flags <= {*outputs_of._FLAGS, "--help"}
    assert outputs(["check", "sdpa", *flags, "--format", "json"], FORMATS)[0].format == "json"
