"""How Sphinx makes the site; ``build.py`` lays the pages out first, and calls it.

Nothing in a page asks another host: fonts and scripts are the theme's own, formulas become MathML.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert

from ppwork.lab.course.shown import CellLexer
from ppwork.version import __version__

project, author, release = "ppwork", "", __version__
html_title = "ppwork"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

html_theme = "sphinx_book_theme"
html_theme_options = {
    "home_page_in_toc": True,
    "show_navbar_depth": 1,
    "use_download_button": True,
    "use_fullscreen_button": False,
    "navbar_persistent": [],
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "light"}  # the figures are drawn on white
html_show_search_summary = False  # a page that was opened from a disk may not read another one
html_show_copyright = False
html_last_updated_fmt = None

nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, Any] = {}
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the cell and what it prints", "Hide it"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
myst_links_external_new_tab = True

autodoc_default_options = {"members": True, "member-order": "groupwise", "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_custom_sections = ["Collective", "Blocks"]
add_module_names = False
math_number_all = False


def _math(writer: Any, node: nodes.Element, display: str) -> None:  # noqa: ANN401  a Sphinx type per version
    writer.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Any) -> None:  # noqa: ANN401
    """Register formulas as MathML, which browsers draw themselves, and the colours of cells."""
    app.add_lexer("cell", CellLexer)
    app.add_html_math_renderer(
        "mathml",
        (lambda writer, node: _math(writer, node, "inline"), None),
        (lambda writer, node: _math(writer, node, "block"), None),
    )


html_math_renderer = "mathml"
