"""Target: the kernels and the definition that a TARGET on the command line names.

Resolution depends only on its two strings, so that a worker process resolves the same target again. A user's file is
imported anew for each version of the file.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from urllib.parse import unquote

from gradoracle.model.description import HostedTarget, described
from gradoracle.model.errors import TargetError, UsageError, named
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel, kernel
from gradoracle.project.definition_slice import folder_first
from gradoracle.project.shipped_names import KERNELS, SHIPPED, family_names
from gradoracle.project.values import LIKE

ALL = "all"

_FORMS = "expected a shipped name, path/to/file.py, path/to/file.py:callable or package.module:callable"
_RAW_TRITON = {"JITFunction", "InterpretedFunction", "Autotuner", "Heuristics"}


@dataclass(frozen=True)
class Target:
    """Kernels of one family.

    Attributes:
        family: whose definition the kernels claim to implement.
        kernels: the kernels, at least one.
        source: the user's file; None for shipped and installed kernels.
        label: the TARGET as given.
    """

    family: Family
    kernels: list[Kernel]
    source: Path | None
    label: str


def shipped() -> dict[str, Target]:
    """Every shipped family with its kernels, by name."""
    return {name: _shipped(name) for name in family_names()}


def expand(text: str) -> list[str]:
    """The targets of a TARGET: every shipped family for ``all``, else itself."""
    return family_names() if text == ALL else [text]


def resolve(text: str, family: str | None = None, judge: Family | None = None) -> Target:
    """The kernels and the family that TARGET and --family name.

    Args:
        text: a shipped name, also with a kernel (``sdpa:kernel``), ``path/to/file.py``, ``path/to/file.py:callable`` or
            ``package.module:callable``.
        family: a shipped name, ``path/to/file.py:family`` or ``package.module:family``; needed for a callable that was
            not declared with ``@gradoracle.kernel``. Or what ``values.like`` writes: a reference and an example.
        judge: the family itself, instead of ``family``; not used for a shipped target.

    Raises:
        TargetError: one sentence: unknown target or family, missing file or callable, a file that cannot be imported,
            a signature that does not fit the family, no or several kernels to choose from.
    """
    if family is not None and LIKE in family:
        return _derived(text, family, judge)
    place, attribute = _split(text)
    if place in family_names():
        target = _shipped(place)
        if family is not None and family != target.family.name:
            raise TargetError(
                f"--family {family} cannot be combined with the shipped target {text}, whose family is fixed"
            )
        if not attribute:
            return target
        named = [found for found in target.kernels if found.name == attribute]
        if not named:
            names = ", ".join(found.name for found in target.kernels)
            raise TargetError(f"{place} has no kernel named {attribute!r}; it has {names}")
        return Target(target.family, named, None, text)
    if not _is_file(place) and not attribute:
        raise TargetError(_unknown("target", text))
    module, source = _module(place)
    if judge is None and family is not None:
        judge = _family(family)
    if attribute:
        subject = _attribute(module, attribute, text)
        return Target(*_one(subject, attribute, module, judge, text), source, text)
    return Target(*_all(module, judge, text), source, text)


def described_target(target: Target, autotuners: Callable[[Kernel], Mapping[str, int]]) -> HostedTarget:
    """What a judge needs to know of a target that is resolved here; ``autotuners`` counts those of a kernel."""
    place, _ = _split(target.label)
    module = None if place in family_names() else _module(place)[0]
    names = {} if module is None else vars(module)
    kernels = [described(own, autotuners(own)) for own in target.kernels]
    families = {value.name: name for name, value in names.items() if isinstance(value, Family)}
    file = "" if module is None or not module.__file__ else str(Path(module.__file__).resolve())
    package = "" if module is None or target.source is not None else str(module.__package__ or "")
    return HostedTarget(tuple(kernels), file, package, families)


def family_for(line: str, text: str, named: str) -> str | None:
    """The --family with which the target of a case line resolves: its ``from=``, none, or the shipped one it names."""
    for word in line.split()[4:]:
        if word.startswith("from="):
            return unquote(word.removeprefix("from="))
    try:
        resolve(text)
    except TargetError:
        return named if named in family_names() else None
    return None


def _derived(text: str, family: str, judge: Family | None) -> Target:
    """The kernel of a target with the family that ``values.like`` writes."""
    from gradoracle.project.example import corrections, derive, seeded

    reference, _, rest = family.partition(LIKE)
    example, *words = rest.split("@")
    place, attribute = _split(text)
    if not attribute:
        raise TargetError(f"--reference judges one callable, but the target is {text}; expected {text}:callable")
    with seeded():
        module, source = _module(place)
        subject = _attribute(module, attribute, text)
        judged, given = (looked_up(each, module)[0] for each in (reference, example))
        if isinstance(subject, Kernel):
            subject = subject.call
        _require_callable(subject, text)
        try:
            found = derive(
                subject, judged, called(given, example), names=(text, reference), corrections=corrections(words)
            )
        except UsageError as error:
            raise TargetError(str(error)) from None
    return Target(judge or found.family, [found.kernel], source, text)


def looked_up(text: str, module: ModuleType | None = None) -> tuple[Any, ModuleType]:
    """What ``place:name`` names, and its module; a name alone is of ``module``.

    Raises:
        TargetError: there is no such file, module or name.
    """
    place, attribute = _split(text)
    if not attribute and module is not None and text.isidentifier():
        return _attribute(module, text, f"{Path(module.__file__ or module.__name__).name}:{text}"), module
    if not attribute:
        raise TargetError(f"{text} names no object; expected path/to/file.py:name or package.module:name")
    found = _module(place)[0]
    return _attribute(found, attribute, text), found


def called(given: Any, text: str) -> Any:
    """An example: a value, or what a function of no arguments returns.

    Raises:
        TargetError: the function raises.
    """
    if not callable(given):
        return given
    try:
        return given()
    except Exception as error:
        raise TargetError(
            f"--like {text} raises {named(error)}; expected a function without arguments that returns an example of "
            "the kernel's arguments"
        ) from None


def place_of(target: Target, kernel: Kernel) -> tuple[str, str]:
    """Where a kernel's callable can be imported from: (module or file, attribute).

    Raises:
        TargetError: it has no such name (a lambda, a function inside another).
    """
    place, _, attribute = target.label.rpartition(":")
    if place and place not in family_names():
        module = _module(place)[0]
        if hasattr(module, attribute.split(".")[0]):
            return place, attribute
    module_name = getattr(kernel.call, "__module__", None) or ""
    for name, value in vars(sys.modules.get(module_name, object)).items():
        if value is kernel.call or (isinstance(value, Kernel) and value.call is kernel.call):
            return (str(target.source) if target.source is not None else module_name), name
    raise TargetError(f"{kernel.name} of {target.label} cannot be imported by name")


def _one(subject: Any, name: str, module: ModuleType, judge: Family | None, text: str) -> tuple[Family, list[Kernel]]:
    """The family and the kernel of ``place:name``."""
    if isinstance(subject, Kernel):
        return _family_of(subject, module, judge, text), [subject]
    if isinstance(subject, Family):
        raise TargetError(f"{text} is a family, not a kernel; expected a callable that implements it")
    _require_callable(subject, text)
    if judge is None:
        families = _members(module, Family)
        if len(families) != 1:
            raise TargetError(
                f"{text} is an outside callable: name the family that it implements with --family NAME "
                f"(one of {', '.join(family_names())}) or --family path/to/file.py:family"
            )
        judge = families[0]
    try:
        return judge, [kernel(judge, name=name)(subject)]
    except TypeError as error:
        raise TargetError(f"{text}: {error}") from None


def _all(module: ModuleType, judge: Family | None, text: str) -> tuple[Family, list[Kernel]]:
    """The family and every kernel of a file."""
    kernels = _members(module, Kernel)
    if not kernels:
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
        ]
        choose = f" (it defines {', '.join(own)})" if own else ""
        raise TargetError(
            f"{text} has no @gradoracle.kernel; declare one or name a callable, as in {text}:callable{choose}"
        )
    names = sorted({found.family for found in kernels})
    if len(names) > 1:
        choices = ", ".join(f"{text}:{name}" for name, value in vars(module).items() if isinstance(value, Kernel))
        raise TargetError(f"{text} has kernels of the families {', '.join(names)}; choose one of {choices}")
    return _family_of(kernels[0], module, judge, text), kernels


def _family_of(kernel: Kernel, module: ModuleType, judge: Family | None, text: str) -> Family:
    """The family that a declared kernel names: the given one, one in its module, or a shipped one."""
    if judge is not None:
        if judge.name != kernel.family:
            raise TargetError(f"{text} is declared as a kernel of {kernel.family}, but --family says {judge.name}")
        return judge
    for found in _members(module, Family):
        if found.name == kernel.family:
            return found
    if kernel.family not in family_names():
        raise TargetError(
            f"{text} is declared as a kernel of {kernel.family}, which is neither in that file nor shipped; "
            "import the family there or give --family path/to/file.py:family"
        )
    return _shipped(kernel.family).family


def _family(text: str) -> Family:
    """The family that --family names."""
    place, attribute = _split(text)
    if not _is_file(place) and not attribute:
        if place not in family_names():
            raise TargetError(_unknown("family", text))
        return _shipped(place).family
    module, _ = _module(place)
    if attribute:
        found = _attribute(module, attribute, text)
        if not isinstance(found, Family):
            raise TargetError(f"--family {text} is a {type(found).__name__}; expected a @gradoracle.family")
        return found
    families = _members(module, Family)
    if len(families) != 1:
        names = ", ".join(family.name for family in families) or "none"
        raise TargetError(f"--family {text} must name one family, as in {text}:family; that file has {names}")
    return families[0]


def _require_callable(subject: Any, text: str) -> None:
    kind = type(subject).__name__
    if kind in _RAW_TRITON:
        raise TargetError(
            f"{text} is a raw Triton kernel; expected the Python function that takes tensors and launches it"
        )
    if isinstance(subject, type) and any(base.__name__ == "Function" for base in subject.__mro__[1:]):
        raise TargetError(f"{text} is an autograd.Function; expected a function of tensors that calls {text}.apply")
    if not callable(subject):
        raise TargetError(f"{text} is of type {kind} and not callable; expected a function of tensors")


def _split(text: str) -> tuple[str, str]:
    """(file, module or name; attribute) of TARGET."""
    place, colon, attribute = text.rpartition(":")
    if not colon:
        return text, ""
    if not place or not attribute:
        raise TargetError(f"target {text!r} is invalid; {_FORMS}")
    return place, attribute


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _members(module: ModuleType, kind: type) -> list[Any]:
    """The objects of a type in a module, each once, in the order of the file."""
    return list({id(value): value for value in vars(module).values() if isinstance(value, kind)}.values())


def _attribute(module: ModuleType, attribute: str, text: str) -> Any:
    """The object that ``attribute`` names in a module; a kernel's declared name is accepted too."""
    for declared in _members(module, Kernel):
        if declared.name == attribute and not hasattr(module, attribute):
            return declared
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [name for name in dir(found) if callable(getattr(found, name, None)) and not name.startswith("_")]
            close = difflib.get_close_matches(part, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TargetError(f"{text.rpartition(':')[0]} has no callable named {attribute!r}{hint}") from None
    return found


def _unknown(what: str, text: str) -> str:
    names = family_names()
    close = difflib.get_close_matches(text, names, n=1)
    if close:
        hint = f"did you mean {close[0]}? "
    elif "." in text and all(part.isidentifier() for part in text.split(".")):
        hint = f"did you mean {':'.join(text.rsplit('.', 1))}? "
    else:
        hint = ""
    forms = _FORMS if what == "target" else _FORMS.replace(":callable", ":family")
    return f"unknown {what} {text!r}: {hint}shipped are {', '.join(names)}; {forms}"


def _shipped(name: str) -> Target:
    try:
        module = importlib.import_module(f"{SHIPPED}.{name}")
        kernels = module.KERNELS  # imported here, not with the family
    except (Exception, SystemExit) as error:  # such as a shipped kernel that is being edited
        if (place := _place_in_kernels(error)) is None:
            raise
        raise TargetError(f"{name} cannot be imported: {_reason(error)} ({place})") from None
    return Target(module.FAMILY, list(kernels), None, name)


def _place_in_kernels(error: BaseException) -> str | None:
    """Where in the shipped kernels an import failed: file and line, or a module; None: elsewhere."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    spec = importlib.util.find_spec(KERNELS)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file, line in reversed(places):
            if Path(file).is_relative_to(folder):
                return f"{Path('kernels', Path(file).relative_to(folder))}, line {line}"
    name = error.name if isinstance(error, ImportError) else None
    return name if name is not None and name.startswith(KERNELS) else None


def _module(place: str) -> tuple[ModuleType, Path | None]:
    """The module of a file or an import path, and the file if it was one."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last: a folder of the project must not hide an installed package
    if _is_file(place):
        path = Path(place)
        if not path.exists():
            raise TargetError(f"no file {place}; {_FORMS}")
        if not path.is_file() or path.suffix != ".py":
            raise TargetError(f"{place} is not a Python file; {_FORMS}")
        return _import_file(path, place, _FORMS), path
    try:
        return importlib.import_module(place), None
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise TargetError(f"no module named {error.name!r} can be imported; {_FORMS}") from None
        raise TargetError(_import_failure(error, place, None)) from None
    except (Exception, SystemExit) as error:
        raise TargetError(_import_failure(error, place, None)) from None


class _Fresh(SourceFileLoader):
    """Compiles the source each time: .pyc files are matched by second and size, too coarse for an edited kernel."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        linecache.checkcache(self.path)  # Triton reads kernels' sources through this cache
        code: CodeType = self.source_to_code(source, self.path)
        return code


def _import_file(path: Path, shown: str, expected: str) -> ModuleType:
    """Import a user's file under a private name, once for each version of the file.

    Raises:
        TargetError: it cannot be imported; names the line.
    """
    resolved = path.resolve()
    stat = resolved.stat()
    state = f"{resolved}|{stat.st_mtime_ns}|{stat.st_size}"
    name = f"gradoracle_target_{path.stem}_{hashlib.sha256(state.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved, loader=_Fresh(name, str(resolved)))
    if spec is None or spec.loader is None:
        raise TargetError(f"{shown} is not a Python file; {expected}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with folder_first(str(resolved.parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TargetError(_import_failure(error, shown, str(resolved))) from None
    return module


def _import_failure(error: BaseException, shown: str, path: str | None) -> str:
    """Where and why an import failed, in one line: the innermost frame of the user's own file, and the exception."""
    line: int | None = None
    if isinstance(error, SyntaxError) and error.filename is not None and path in (None, error.filename):
        line = error.lineno
    if line is None and path is not None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = frames[-1].lineno if frames else None
    return f"{shown}{f', line {line}' if line else ''}: cannot be imported: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """An exception in one line; of a syntax error without its place."""
    return f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else named(error)
