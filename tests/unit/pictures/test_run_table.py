"""The table that a run ends with."""

import msgspec
import pytest

from ppwork.pictures.run_table import rows_of
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE, Run
from ppwork.records.spans import Instant, Recorder, span_file


@pytest.mark.parametrize(("came", "said"), [(5, "5 of 8 (encode returned None), "), (8, "8, ")])
def test_a_source_that_ended_before_its_time_shows(tmp_path, came, said):
    """A forgotten `return` of encode ended a run of 20 chunks after 5, and nothing said so."""
    Plan(mesh_size=2, chunks=8).save(tmp_path)
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": came}))
    with Recorder(span_file(tmp_path, 0)) as recorder:
        for chunk in range(came):
            recorder.write(Instant("emit", "main", chunk, chunk_index=chunk))
    assert dict(rows_of(Run(tmp_path, 0)))["chunks"].startswith(said)


def test_a_quality_that_is_no_number_has_no_line(tmp_path):
    """JSON has no infinity: it stands there as null."""
    Plan().save(tmp_path)
    (tmp_path / SUMMARY_FILE).write_text('{"figures": {"psnr_noisy_db": null, "psnr_denoised_db": null}}')
    assert "PSNR" not in dict(rows_of(Run(tmp_path, 0)))


def test_a_period_that_no_run_has_makes_no_share(tmp_path):
    Plan().save(tmp_path)
    (tmp_path / SUMMARY_FILE).write_text('{"period_ms": -1, "stage0_ms": 1, "stage1_ms": 1}')
    assert "source" not in dict(rows_of(Run(tmp_path, 0)))


def test_an_integer_beyond_every_float_is_no_figure(tmp_path):
    """A folder may come from anybody, and JSON has integers of any length."""
    Plan().save(tmp_path)
    (tmp_path / SUMMARY_FILE).write_text(f'{{"period_ms": {"9" * 400}, "max_abs_diff": 0.5}}')
    rows = dict(rows_of(Run(tmp_path, 0)))
    assert "period" not in rows
    assert rows["verified"].startswith("max_abs_diff 0.5 ")
