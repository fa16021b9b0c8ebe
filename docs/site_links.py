"""Links of the site that lead out of docs/: the site does not hold the repository, so it names the file instead.

A link to a file that does not exist is left as it is, and a strict build fails of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]\n]+)\]\((\.\.?/[^)\s#]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **others: Any) -> str:
    """Name files of the repository in place of links to them."""
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
