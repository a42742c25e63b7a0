"""The report in headless Chromium without a network: no complaint, nothing asked for, no overflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import chromium
from helpers.results import BATCH, make_fault, make_records, make_result, make_search, sample_analysis

from advisor.report.html import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validation with every part, of 5,000 requests, its plan below."""
    result = make_result(
        make_records(5000, window_s=500.0, failed=40), window_s=500.0, search=make_search(), classes=(BATCH,),
        fault=make_fault(), emulates="h100-sxm", scaled=("arrivals stretched 1.40 times",),
        replayed={"model": "<script>document.title='owned'</script>" + "long-name-" * 30},
    )  # fmt: skip
    path = tmp_path_factory.mktemp("browser") / "report.html"
    return write_report(path, analysis=sample_analysis(), trace=None, result=result)


@pytest.mark.parametrize(("width", "dark"), [(1100, False), (1100, True), (390, False), (390, True)])
def test_it_opens_without_a_network_or_a_complaint(
    report: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    shot = tmp_path / "shot.png"
    seen = chromium.look(report, shot, width=width, dark=dark)
    assert seen.console == []
    assert seen.requests == [report.resolve().as_uri()]
    assert seen.wide == width
    assert seen.title.startswith("REHEARSED")  # no script changed it
    assert seen.data["result"]["score"]["requests"] == 5000
    assert seen.ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert shot.stat().st_size > 10_000


def test_it_is_small(report: Path) -> None:
    assert report.stat().st_size <= 500_000


def test_the_check_sees_a_page_that_loads_and_complains(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    data = '<script type="application/json" id="advise-data">{}</script>'
    page.write_text(f'<title>x</title>{data}<img src="http://nowhere.invalid/a.png"><p style="width:2000px">.')
    seen = chromium.look(page, None, width=800)
    assert seen.console
    assert "http://nowhere.invalid/a.png" in seen.requests
    assert seen.wide > 800
