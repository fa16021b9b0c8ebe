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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gradoracle.model.description import HostedTarget, described
from gradoracle.model.errors import TargetError, UsageError, named
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel, kernel
from gradoracle.model.location import place_of
from gradoracle.model.modules import input_names
from gradoracle.project.definition import named_family
from gradoracle.project.definition_slice import current_folder_last, folder_first
from gradoracle.project.naming import FORMS, is_file, split, unknown
from gradoracle.project.shipped_names import KERNELS, SHIPPED, family_names
from gradoracle.project.values import LIKE

ALL = "all"

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
    place, attribute = split(text)
    if place in family_names():
        target = _shipped(place)
        _require_no_other(text, place, family)
        return Target(target.family, _named(target.kernels, attribute, place), None, text)
    if not is_file(place) and not attribute:
        raise TargetError(unknown("target", text))
    module, source = _module(place)
    if judge is None and family is not None:
        judge = named_family(family)
    if attribute:
        subject = _attribute(module, attribute, text)
        return Target(*_one(subject, attribute, module, judge, text), source, text)
    return Target(*_all(module, judge, text), source, text)


def kernels_of(text: str, family: str | None, judge: Family | None) -> list[Kernel]:
    """The kernels of a target alone, for a host: the family of a shipped one is not imported.

    Args:
        text: as of ``resolve``.
        family: as of ``resolve``.
        judge: the family that ``family`` names, of which name and signature are used.

    Raises:
        TargetError: as of ``resolve``.
    """
    place, attribute = split(text)
    if place not in family_names() or (family is not None and LIKE in family):
        return resolve(text, family, judge).kernels
    _require_no_other(text, place, family)
    return _named(_kernels_alone(place), attribute, place)


def described_target(
    text: str, kernels: Iterable[Kernel], autotuners: Callable[[Kernel], Mapping[str, int]]
) -> HostedTarget:
    """What a judge needs to know of a target whose kernels are here; ``autotuners`` counts those of a kernel."""
    place, attribute = split(text)
    module = None if place in family_names() else _module(place)[0]
    names = {} if module is None else vars(module)
    own = tuple(replace(described(each, autotuners(each)), imported=imported_from(text, each)) for each in kernels)
    families = {value.name: name for name, value in names.items() if isinstance(value, Family)}
    file = "" if module is None or not module.__file__ else str(Path(module.__file__).resolve())
    subject: Any = None if module is None or not attribute else _attribute(module, attribute, text)
    if weights := input_names(subject):  # with --like, inputs: the signature is that of forward
        own = tuple(replace(each, call=place_of(subject.forward)) for each in own)
    parameters = {
        name: (str(weight.dtype).removeprefix("torch."), tuple(weight.shape)) for name, (_, weight) in weights.items()
    }
    return HostedTarget(own, file, families, parameters)


def _derived(text: str, family: str, judge: Family | None) -> Target:
    """The kernel of a target with the family that ``values.like`` writes."""
    from gradoracle.project.example import called, corrections, derive, seeded

    reference, _, rest = family.partition(LIKE)
    example, *words = rest.split("@")
    place, attribute = split(text)
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
    place, attribute = split(text)
    if not attribute and module is not None and text.isidentifier():
        return _attribute(module, text, f"{Path(module.__file__ or module.__name__).name}:{text}"), module
    if not attribute:
        raise TargetError(f"{text} names no object; expected path/to/file.py:name or package.module:name")
    found = _module(place)[0]
    return _attribute(found, attribute, text), found


def imported_from(text: str, kernel: Kernel) -> tuple[str, str] | tuple[()]:
    """Where a kernel of a target can be imported from: (module or file, attribute).

    () of one that has no such name: a lambda, a function inside another.
    """
    place, attribute = split(text)
    module, file = (None, None) if place in family_names() else _module(place)
    if attribute and module is not None and hasattr(module, attribute.split(".")[0]):
        return place, attribute
    source = str(file or "")
    name_of_module = getattr(kernel.call, "__module__", None) or ""
    for name, value in vars(sys.modules.get(name_of_module, object)).items():
        if value is kernel.call or (isinstance(value, Kernel) and value.call is kernel.call):
            return source or name_of_module, name
    return ()


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


def _require_no_other(text: str, place: str, family: str | None) -> None:
    if family is not None and family != place:
        raise TargetError(f"--family {family} cannot be combined with the shipped target {text}, whose family is fixed")


def _named(kernels: Sequence[Kernel], name: str, place: str) -> list[Kernel]:
    """The kernel of that name; all of them for ""."""
    named = [found for found in kernels if name in ("", found.name)]
    if not named:
        raise TargetError(f"{place} has no kernel named {name!r}; it has {', '.join(each.name for each in kernels)}")
    return named


def _shipped(name: str) -> Target:
    family = importlib.import_module(f"{SHIPPED}.{name}").FAMILY
    return Target(family, list(_kernels_alone(name)), None, name)


def _kernels_alone(name: str) -> Sequence[Kernel]:
    """The kernels of a shipped family, which is not imported where they have a module of their own."""
    package = f"{SHIPPED}.{name}"
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    folders = () if spec is None else spec.submodule_search_locations or ()
    try:
        if spec is None or not any(Path(folder, "kernels.py").is_file() for folder in folders):
            return tuple(importlib.import_module(package).KERNELS)
        sys.modules[package] = importlib.util.module_from_spec(spec)  # not executed
        try:
            return tuple(importlib.import_module(f"{package}.kernels").KERNELS)
        finally:
            del sys.modules[package]
    except (Exception, SystemExit) as error:  # such as a shipped kernel that is being edited
        if (place := _place_in_kernels(error)) is None:
            raise
        raise TargetError(f"{name} cannot be imported: {_reason(error)} ({place})") from None


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
    current_folder_last()
    if is_file(place):
        path = Path(place)
        if not path.exists():
            raise TargetError(f"no file {place}; {FORMS}")
        if not path.is_file() or path.suffix != ".py":
            raise TargetError(f"{place} is not a Python file; {FORMS}")
        return _import_file(path, place, FORMS), path
    try:
        return importlib.import_module(place), None
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise TargetError(f"no module named {error.name!r} can be imported; {FORMS}") from None
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
