"""The pages of the API reference: every public name of every module, each documented in one place."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

PAGE = """\
# {title}

```{{eval-rst}}
.. automodule:: {module}
   :imported-members:
   :exclude-members: {but}

{more}
```
"""


def reference(modules: Mapping[str, str]) -> dict[str, str]:
    """Return a page for each module, as MyST Markdown.

    A page documents each name of the module's ``__all__``, or links to the page that does.

    Args:
        modules: Titles, by the modules' names.
    """
    places: dict[tuple[str, str], str] = {}
    pages = {}
    for module, title in modules.items():
        face = importlib.import_module(module)
        skipped, data, links = [], [], []
        for name in face.__all__:
            value, home = getattr(face, name), home_of(face, name)
            known = inspect.isclass(value) or inspect.isfunction(value)
            place = f"{module if known else home}.{name}"
            if not known:
                skipped.append(name)
            if isinstance(value, ModuleType):
                links.append(f":doc:`{name} <{value.__name__}>`")
            elif (home, name) in places:
                skipped.append(name)
                role = "class" if inspect.isclass(value) else "func" if known else "data"
                links.append(f":py:{role}:`{name} <{places[home, name]}>`")
            else:
                places[home, name] = place
                data += [] if known else [f".. autodata:: {place}\n"]
        more = [*data, f"Documented on other pages: {', '.join(links)}."] if links else data
        pages[module] = PAGE.format(title=title, module=module, but=", ".join(skipped), more="\n".join(more))
    return pages


def home_of(face: ModuleType, name: str) -> str:
    """Return the module that defines a name of a face; the value itself may not know it."""
    value = getattr(face, name)
    if isinstance(value, ModuleType):
        return value.__name__
    for node in ast.walk(ast.parse(Path(inspect.getfile(face)).read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("ppwork"):
            continue
        if any((alias.asname or alias.name) == name for alias in node.names):
            return home_of(importlib.import_module(str(node.module)), name)
    return face.__name__
