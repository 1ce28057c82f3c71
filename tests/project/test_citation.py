"""The citation file reads, and speaks of this version."""

import yaml
from checkout import ROOT

from ppwork.version import __version__


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert citation["authors"]
    assert "ppwork" in citation["title"]
