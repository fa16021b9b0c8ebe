"""Links that lead out of docs/: the site does not contain the repository, so it names the file instead.

A link to a file that does not exist is left as it is, so that a strict build fails on it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\((\.\.?/[^)\s#]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **others: Any) -> str:
    """Replace links to files of the repository by their names."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def named(found: re.Match[str]) -> str:
        text, link = found.groups()
        place = (here / link).resolve()
        if place.is_relative_to(docs) or not place.exists():
            return found[0]
        file = place.relative_to(docs.parent).as_posix()
        return f"{text} (`{file}`)" if Path(file).name not in text else f"`{file}`"

    return _LINK.sub(named, markdown)
