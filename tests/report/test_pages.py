"""Pages: self-contained, well-formed, repeatable, and safe from what they show."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edgecompile.audit.judge import AuditVerdict
from edgecompile.buckets.assessment import PlanAssessment, assess_plan
from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.buckets.planner import plan_buckets
from edgecompile.bundle.verdict import CaseResult, VerifyReport
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.joint import JointDistribution
from edgecompile.models.loaded import ModelSource
from edgecompile.report import plots
from edgecompile.report.canvas import VARIABLES
from edgecompile.report.page import Drawing, Section, Table, render_page
from edgecompile.report.pages import bench_section, build_header, build_page
from edgecompile.report.pages import verify_section as make_verify_section
from edgecompile.report.plan_section import plan_section
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.runtime.format.manifest.schema import Tolerance
from tests.buckets.costs.grids import two_axes
from tests.runtime.bundles import DummyBundle

VOID = {"meta", "br", "hr", "img", "input", "link"}
SAMPLE = LengthDistribution.from_samples([2 + i * i % 120 for i in range(400)], "access.log")
CURVE = CostGrid(
    tuple(CostPoint(n, 2.1 + 0.07 * n, 1.7 + 0.065 * n) for n in (2, 16, 64, 121)),
    "measured",
    {"variant": "x86-64-v3"},
)
PLAN = plan_buckets(SAMPLE, CURVE, max_buckets=4)


class Checker(HTMLParser):
    """Notes the tags that don't nest, the ids, the references and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.targets: set[str] = set()
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attributes:
            value = value or ""
            if name == "id":
                self.ids[value] += 1
            if name in ("href", "src", "xlink:href", "action"):
                if value.startswith("#"):
                    self.targets.add(value[1:])
                else:
                    self.addresses.append(value)
            self.targets.update(re.findall(r"url\(#([^)]*)\)", value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker


def verify_report(*errors: float) -> VerifyReport:
    tolerance = Tolerance(atol=1e-6, rtol=1e-5)
    results = tuple(
        CaseResult("x86-64-v3", 0, f"case{i}", error, 1.0, error <= tolerance.limit(1.0))
        for i, error in enumerate(errors)
    )
    return VerifyReport(results, {"x86-64-v4": "this CPU lacks avx512f"}, tolerance, False)


def joint_judgement() -> PlanAssessment:
    axes = ("length", "batch")
    cells = {(2 + i * i % 61, 1 + i % 4): 1 + i % 3 for i in range(200)}
    sample = JointDistribution.from_counts(axes, cells, "joint.csv")
    points = [
        (batch, CostPoint(n, 2.1 + 0.07 * n * batch, 1.7 + 0.065 * n * batch))
        for batch in (1, 4)
        for n in (2, 32, 64)
    ]
    surface = two_axes(axes, points, "measured")
    return assess_plan(plan_buckets(sample, surface, max_buckets=3), sample, programs=3)


def whole_page(judgement: PlanAssessment) -> str:
    sections = [
        plan_section(judgement),
        make_verify_section(verify_report(1e-7, 5e-5), PLAN.buckets),
        bench_section(["length 8", "length 64"], {"p50": [1.9, 3.7], "p99": [2.5, 4.0]}),
    ]
    return render_page("minilm", sections, lead="For cpu-x86-64.", facts=[("torch", "2.13.0")])


LENGTHS_ONLY = assess_plan(PLAN, SAMPLE, programs=4)
BOTH = pytest.mark.parametrize(
    "judgement", [LENGTHS_ONLY, joint_judgement()], ids=["lengths", "joint"]
)


@BOTH
def test_the_page_is_self_contained_and_well_formed(judgement: PlanAssessment) -> None:
    page = whole_page(judgement)
    checker = check(page)
    assert checker.wrong == [] and checker.open == []
    assert checker.addresses == []
    assert checker.tags["script"] == checker.tags["link"] == checker.tags["iframe"] == 0
    assert checker.tags["svg"] == 4
    addresses = set(re.findall(r"https?://[^\"'\s)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert [i for i, n in checker.ids.items() if n > 1] == []
    assert checker.targets <= set(checker.ids)


def test_the_page_shows_what_it_was_given() -> None:
    text = " ".join(" ".join(check(whole_page(LENGTHS_ONLY)).text).split())
    for part in ("For cpu-x86-64.", "powers of two", "case1", "FAILED", "torch 2.13.0"):
        assert part in text
    assert "x86-64-v4 built, not run: this CPU lacks avx512f." in text


def test_the_same_values_give_the_same_bytes() -> None:
    for make in (lambda: assess_plan(PLAN, SAMPLE, programs=4), joint_judgement):
        assert whole_page(make()) == whole_page(make())


def test_drawings_take_the_colours_of_the_page() -> None:
    page = whole_page(LENGTHS_ONLY)
    used = set(re.findall(r"var\(--([a-z0-9-]+)", page))
    dark = page[page.index("prefers-color-scheme: dark") : page.index("* {")]
    assert used - set(re.findall(r"--([a-z0-9-]+):", dark)) == set()
    assert set(VARIABLES) <= set(re.findall(r"--([a-z0-9-]+):", dark))


def test_what_is_shown_stays_text() -> None:
    evil = "<script>alert(1)</script>&amp;\"'"
    page = render_page(
        evil,
        [
            Section(
                evil,
                figures=((evil, evil),),
                notes=(evil,),
                warnings=(evil,),
                parts=(
                    Table(evil, (evil,), ((evil,),), caption=evil),
                    Drawing(evil, plots.bars([evil], {evil: [1.0]}), evil),
                ),
            )
        ],
        lead=evil,
        header=[(evil, evil)],
        facts=[(evil, evil)],
    )
    checker = check(page)
    assert checker.tags["script"] == 0 and checker.wrong == []
    # title, h1, lead, header (2), h2, figure (2), table (4), drawing (3), fact (2)
    assert checker.text.count(evil) == 17
    assert checker.text.count(f"{evil}.") == 2  # the warning and the note, as sentences


def test_a_failed_check_stands_out() -> None:
    section = make_verify_section(verify_report(1e-7, 5e-5, float("nan")), PLAN.buckets)
    table = section.parts[0]
    assert isinstance(table, Table)
    assert table.bad == (1, 2)
    assert dict(section.figures)["failed"] == "2"
    assert '<tr class="bad">' in render_page("x", [section])


def test_cases_are_in_the_order_in_which_people_count() -> None:
    names = [f"text{i}" for i in (1, 10, 11, 2)]
    results = tuple(
        CaseResult("x86-64-v3", 0, name, 1.0 if name == "text10" else 0.0, 1.0, name != "text10")
        for name in names
    )
    report = VerifyReport(results, {}, Tolerance(atol=1e-6, rtol=1e-5), False)
    table = make_verify_section(report, PLAN.buckets).parts[0]
    assert isinstance(table, Table)
    assert [row[2] for row in table.rows] == ["text1", "text2", "text10", "text11"]
    assert [table.rows[i][2] for i in table.bad] == ["text10"]


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        (
            "x86-64-v4",
            "the variant x86-64-v4 can't run here: the CPU or the system lacks avx512f, avx512bw",
            "x86-64-v4 built, not run: this CPU has no AVX-512.",
        ),
        (
            "x86-64-amx",
            "the variant x86-64-amx can't run here: the CPU or the system lacks avx512f, amx_tile",
            "x86-64-amx built, not run: this CPU has no AVX-512 and no AMX.",
        ),
        (
            "aarch64-dotprod",
            "the variant aarch64-dotprod can't run here: is for aarch64, this is x86-64",
            "aarch64-dotprod built, not run: it is for aarch64, this host is x86-64.",
        ),
        (
            "a",
            "needs glibc 2.40, this is 2.36",
            "a built, not run: needs glibc 2.40, this is 2.36.",
        ),
    ],
)
def test_why_a_variant_was_not_run_is_said_once(name: str, reason: str, said: str) -> None:
    assert VerifyReport((), {name: reason}, Tolerance(1e-6, 1e-5), False).not_run() == (said,)


def test_warnings_stand_apart_from_notes() -> None:
    found = bench_section(["a"], {"p50": [1.0]}, notes=["it was so"], warnings=["others were busy"])
    page = render_page("bench", [found])
    assert '<ul class="notes warnings">\n<li>Others were busy.</li>' in page
    assert '<ul class="notes">\n<li>It was so.</li>' in page
    assert "ul.warnings { color: var(--warn)" in page


def test_drawings_fit_a_narrow_screen() -> None:
    assert "min-width: 42rem" not in whole_page(LENGTHS_ONLY)


@pytest.mark.parametrize("measured", [True, False])
def test_a_page_begins_with_what_it_is_about(tmp_path: Path, measured: bool) -> None:
    data = json.dumps(DummyBundle(tmp_path).listed()).encode()
    manifest = parse_manifest(data, "manifest.json")
    verdict = AuditVerdict("a.so", "x86-64-v3", "cpu-x86-64", (), "", None, None, (), True)
    source = ModelSource("folder", "/somewhere/my bert", details={"architecture": "BertModel"})
    header = dict(build_header(manifest, source, [verdict], measured=measured))
    assert header["model"] == f"{manifest.name} (BertModel)" and header["target"] == "cpu-x86-64"
    assert header["precision"] == manifest.precision
    assert header["inputs"].startswith(f"{manifest.inputs[0].name} {manifest.inputs[0].dtype} [")
    assert header["outputs"].startswith(manifest.outputs[0].name)
    # Two builds of what wasn't measured here are equal, byte by byte.
    assert ("built" in header) == ("machine" in header) == measured
    report = verify_report(1e-7)
    page = build_page("n", PLAN, SAMPLE, LENGTHS_ONLY, report, header=tuple(header.items()))
    assert page.index("<dt>target</dt><dd>cpu-x86-64</dd>") < page.index("<h2>")


def test_the_page_of_a_build() -> None:
    judgement = assess_plan(PLAN, SAMPLE, programs=4)
    page = build_page("minilm", PLAN, SAMPLE, judgement, verify_report(1e-7))
    checker = check(page)
    assert checker.wrong == [] and checker.tags["svg"] == 3
    text = " ".join(checker.text)
    assert "Lengths: access.log" in text and "Verification" in text
