"""The HTML report: what stands first, nothing loaded, nothing executed, the same bytes again."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from helpers.results import (
    BATCH,
    make_fault,
    make_records,
    make_result,
    make_search,
    sample_analysis,
    scenario,
)
from pydantic import BaseModel
from rich.console import Console

from advisor.advice.analysis import Analysis
from advisor.logs.trace import Labels, Trace
from advisor.report.html import render, write_report
from advisor.report.verdict import show_results
from advisor.validation.result import Result
from engine.resources import data_folder

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&{{ 7*7 }}\x1b[31m\u2028$x_1$</style></svg>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Seen(HTMLParser):
    """The elements of a page with their attributes, its text, and each element's own."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.script = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.script += data
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)
            self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def names(self) -> Counter[str]:
        return Counter(tag for tag, _ in self.tags)


def trace(label: str = "gpt") -> Trace:
    """Two bursts in five minutes."""
    rng = np.random.default_rng(0)
    arrivals = np.sort(np.concatenate([rng.uniform(0, 300, 500), rng.uniform(100, 110, 80)]))
    size = len(arrivals)
    labels = Labels((label,), np.zeros(size, dtype=np.int64))
    return Trace(
        arrival_s=arrivals - arrivals[0], prompt_tokens=rng.integers(20, 3000, size),
        output_tokens=rng.integers(1, 300, size), model=labels, route=labels, client=labels,
    )  # fmt: skip


def everything() -> Result:
    """A validation with every part that a report may have."""
    return make_result(
        make_records(failed=20),
        search=make_search(),
        classes=(BATCH,),
        fault=make_fault(),
        emulates="h100-sxm",
        scaled=("arrivals stretched 1.40 times",),
        incidents=("decode-0 died",),
    )


def bare(result: Result) -> Result:
    """Without its records, and so without most figures."""
    return result.model_copy(update={"records": ()})


@pytest.fixture(scope="module")
def full() -> str:
    return render(analysis=sample_analysis(), trace=trace(), result=everything())


@pytest.fixture(scope="module")
def seen(full: str) -> Seen:
    return Seen(full)


def test_the_verdict_stands_first_with_the_requests_and_what_the_misses_prove() -> None:
    page = Seen(render(analysis=None, trace=None, result=scenario("pass")))
    text = " ".join("".join(page.text).split())
    assert page.texts["h1"] == ["PASS: 593 of 600 requests kept the targets"]
    assert (
        text.index("PASS: 593")
        < text.index("up to 47 misses prove")
        < text.index("Can the measurement be trusted?")
    )
    # scipy.stats.beta.ppf(0.05, 593, 8) and ppf(0.95, 594, 7)
    assert "At least 97.8% and at most 99.5%" in text


def test_nothing_is_loaded_and_nothing_runs(seen: Seen) -> None:
    assert not set(seen.names()) & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "form",
        "base",
        "image",
        "foreignobject",
    }
    scripts = [attrs for tag, attrs in seen.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "advise-data"}]
    for tag, attrs in seen.tags:
        assert not any(
            name.startswith("on") or name in ("src", "srcset", "action", "data") for name in attrs
        ), tag
        assert attrs.get("href", "#").startswith("#"), attrs
        assert attrs.get("xlink:href", "#").startswith("#"), attrs
    policy = next(a["content"] for t, a in seen.tags if t == "meta" and "http-equiv" in a)
    assert policy.split("; ")[:2] == ["default-src 'none'", "style-src 'unsafe-inline'"]


def test_styles_point_at_nothing_outside(full: str) -> None:
    assert set(re.findall(r"url\((.)", full)) <= {"#"}
    assert "@import" not in full
    assert "@font-face" not in full


def test_every_id_is_there_once_and_every_pointer_finds_its_own(seen: Seen, full: str) -> None:
    ids = Counter(attrs["id"] for _, attrs in seen.tags if "id" in attrs)
    assert max(ids.values()) == 1
    pointers = {attrs["href"][1:] for _, attrs in seen.tags if "href" in attrs}
    pointers |= set(re.findall(r"url\(#([^)]+)\)", full))
    assert pointers
    assert pointers <= set(ids)


def test_every_figure_is_named_and_has_its_table_behind_it(seen: Seen, full: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", full, flags=re.DOTALL)
    titles = [re.findall(r"<h3>(.*?)</h3>", figure)[0] for figure in figures]
    assert titles == [
        "Attainment over rate",
        "TTFT against its target",
        "TPOT against its target",
        "Time line",
        "What was missed",
        "Gaps and stalls",
        "What each idea is worth",
        "Layouts",
        "What a cache finds",
        "Arrivals",
        "Lengths",
    ]
    for figure in figures:
        assert re.search(r'<svg role="img" aria-label="[^"]{20,}"', figure)
        assert figure.count("<tr>") >= 2
    drawn = [attrs for tag, attrs in seen.tags if tag == "svg"]
    assert len(drawn) == len(figures)


def test_figures_take_their_colours_from_the_page(full: str) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", full, flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", drawings)
    used = set(re.findall(r"var\((--[a-z]+)\)", full))
    assert used <= set(re.findall(r"(--[a-z]+):", full))


def test_the_whole_report_is_small(full: str) -> None:
    assert len(full.encode()) < 500_000


def test_the_parts_of_a_run_are_there(seen: Seen) -> None:
    assert seen.texts["h2"] == [
        "Can the measurement be trusted?",
        "What was measured",
        "Latencies",
        "Classes, the worst first",
        "Predicted and measured",
        "The fault and its cost",
        "What other tools would have reported",
        "The plan: Keep the defaults",
        "What the plan rests on",
        "What would change the plan",
        "The configuration, and why",
        "Advice",
        "The traffic",
        "Traits",
        "What is not known",
        "What no figure contains",
        "Provenance",
    ]


def test_what_there_is_nothing_of_is_absent() -> None:
    result = bare(make_result(predicted=False, elsewhere=()))
    page = Seen(render(analysis=None, trace=None, result=result))
    assert page.texts["h2"] == [
        "Can the measurement be trusted?",
        "What was measured",
        "Latencies",
        "Provenance",
    ]
    assert page.texts["h3"] == ["Attainment over rate", "What was missed"]
    assert "banner" not in [attrs.get("class") for _, attrs in page.tags]


def test_a_rehearsal_and_scaled_traffic_have_banners(seen: Seen) -> None:
    banners = [attrs for tag, attrs in seen.tags if attrs.get("class") == "banner"]
    assert len(banners) == 2
    assert seen.texts["strong"] == ["REHEARSED", "Scaled: not your traffic"]
    assert any("This proves plumbing, not advice." in text for text in seen.texts["p"])


def test_the_report_of_an_analysis_says_what_to_do_and_knows_no_clock() -> None:
    page = Seen(render(analysis=sample_analysis(), trace=None, result=None))
    assert page.texts["h1"] == ["Keep the defaults"]
    assert "advise launch --emulate h100-sxm" in page.texts["code"]
    assert "run began" not in page.texts["dt"]
    assert "plan digest" in page.texts["dt"]
    assert sample_analysis().digest() in page.texts["dd"]


def test_the_same_inputs_give_the_same_bytes(full: str) -> None:
    assert render(analysis=sample_analysis(), trace=trace(), result=everything()) == full


def test_the_json_in_the_page_is_the_result_and_the_analysis(seen: Seen) -> None:
    content = json.loads(seen.script)
    assert content["result"] == everything().model_dump(mode="json")
    assert content["analysis"] == sample_analysis().model_dump(mode="json")


def test_ttft_shares_are_of_all_scheduled_requests() -> None:
    records = make_records(failed=60)
    page = "".join(Seen(render(analysis=None, trace=None, result=make_result(records))).text)
    inside = sum(bool(r.t_chunk) and r.t_chunk[0] - r.t_sched <= 0.5 for r in records)
    assert f"{inside / 600:.1%} of 600 requests within 500 ms; 60 have none and count as misses" in page


def test_the_worst_stall_is_named() -> None:
    records = list(make_records())
    place = next(i for i, r in enumerate(records) if len(r.t_chunk) > 5)
    chunks = records[place].t_chunk
    moved = (*chunks[:3], *(stamp + 7.0 for stamp in chunks[3:]))
    records[place] = records[place].__class__(**{**_fields(records[place]), "t_chunk": moved})
    rows = "".join(Seen(render(analysis=None, trace=None, result=make_result(records))).text)
    assert f"row {place}, chunk 3" in rows
    assert re.search(r"longest 7\.0\d s", rows)


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}


def poisoned(value: Any) -> Any:
    """A copy of models and containers with EVIL behind every string that is free text."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, BaseModel):
        free = {
            name: poisoned(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if not _chosen(field.annotation) and name not in ("slo", "records")
        }
        return value.model_copy(update=free)
    if isinstance(value, tuple | list):
        return type(value)(poisoned(one) for one in value)
    if isinstance(value, dict):
        return {key: poisoned(one) for key, one in value.items()}
    return value


def _chosen(annotation: Any) -> bool:
    """Whether a field holds one of a few words."""
    return get_origin(annotation) is Literal or any(_chosen(one) for one in get_args(annotation))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def test_a_script_in_every_field_stays_text(full: str) -> None:
    analysis, result = poisoned(_named_control()), poisoned(everything())
    page = render(analysis=analysis, trace=trace(EVIL), result=result)
    found, clean = Seen(page), Seen(full)
    assert found.names()["script"] == 1
    assert not found.names()["img"]
    tags = set(clean.names())
    assert set(found.names()) <= tags
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    text = "".join(found.text)
    assert text.count("<script>alert(1)</script>") > 100
    assert "{{ 7*7 }}" in text
    assert "\x1b" not in page
    assert "\u2028" not in page
    assert sum(EVIL in one for one in strings(json.loads(found.script))) > 100
    # The same elements but for lines that the longer names take in a figure.
    counted = {"script", "style", "svg", "figure", "table", "tr", "td", "h1", "h2", "h3", "p", "dd", "li"}
    assert {t: n for t, n in found.names().items() if t in counted} == {
        t: n for t, n in clean.names().items() if t in counted
    }


def _named_control() -> Analysis:
    """The sample, whose plan names what runs now, so that the name still fits when both have more to them."""
    sample = sample_analysis()
    assert sample.plan is not None
    reasons = sample.plan.reasons | {"control": "defaults"}
    return sample.model_copy(update={"plan": sample.plan.model_copy(update={"reasons": reasons})})


def test_lone_surrogates_do_not_stop_the_report(tmp_path: Path) -> None:
    result = bare(make_result(replayed={"model": "x\ud800y"}))
    path = write_report(tmp_path / "report.html", analysis=None, trace=None, result=result)
    assert b"x\\ud800y" in path.read_bytes()


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")
    path.chmod(0o644)
    write_report(path, analysis=None, trace=None, result=bare(make_result()))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("<!doctype html>")


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs an analysis or a result"):
        write_report(tmp_path / "r.html", analysis=None, trace=None, result=None)


@pytest.mark.parametrize("name", ["fail", "invalid", "interrupted", "likely fail"])
def test_other_verdicts_have_their_tone_and_their_command(name: str) -> None:
    page = Seen(render(analysis=None, trace=None, result=bare(scenario(name))))
    tone = {"fail": "bad", "likely fail": "bad"}.get(name, "warn")
    assert f"head {tone}" in [attrs.get("class") for _, attrs in page.tags]
    assert any(code.startswith("advise ") for code in page.texts["code"])


def luminance(colour: str) -> float:
    """Relative luminance by WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_have_enough_contrast_in_light_and_dark() -> None:
    css = (data_folder("templates") / "report" / "style.css.j2").read_text()
    palettes = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    assert len(palettes) == 2
    for palette in palettes:
        colours = dict(re.findall(r"(--\w+): (#[0-9a-f]{6})", palette))
        assert len(colours) == 13
        for ground in ("--bg", "--panel"):
            for name in set(colours) - {"--bg", "--panel", "--rule"}:
                low, high = sorted((luminance(colours[name]), luminance(colours[ground])))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


def test_neither_the_commands_nor_the_entry_point_load_matplotlib() -> None:
    modules = "advisor.cli, advisor.report.html, advisor.report.verdict"
    code = f"import sys, {modules}; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_why_nothing_is_predicted_is_said_on_the_page_and_on_the_screen() -> None:
    result = make_result(make_records()).model_copy(
        update={"predicted": None, "not_predicted": "engine.yaml was edited"}
    )
    assert "engine.yaml was edited" in render(analysis=None, trace=None, result=result)
    screen = io.StringIO()
    show_results(Console(file=screen, width=100), {"measured": result})
    assert "nothing is predicted: engine.yaml was edited" in screen.getvalue()
