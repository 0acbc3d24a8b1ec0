"""The page in headless Chromium, by keyboard and mouse, on a phone, in print and without JavaScript."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import hf_factuality
from hf_factuality.report import ReportSample, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification
from tests.verifiers import hostile


pytestmark = pytest.mark.slow
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# axe-core's axe.min.js, which is not ours to copy.
AXE = os.environ.get("HF_FACTUALITY_AXE")
S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
EVIDENCE = "Cork is a city in Ireland."


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Opens a file. The page may load nothing, and no error may be logged."""
    contexts, wrong = [], []

    def visit(path, width=1100, height=800, **settings):
        context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        address = Path(path).as_uri()
        page.on("request", lambda request: wrong.append(request.url) if request.url != address else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.goto(address)
        return page

    visit.wrong = wrong
    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


def answer(name, *labels, score=None, evidence=EVIDENCE, text="Sentence {} of {}."):
    """A sample whose sentences have these labels."""
    parts, spans, end = [], [], 0
    for number, label in enumerate(labels):
        parts.append(text.format(number, name))
        spans.append(LabeledSpan(end, end + len(parts[-1]), label, score, evidence=evidence, reason="it is so"))
        end += len(parts[-1]) + 1
    return " ".join(parts), Verification(tuple(spans))


def sample(name, *labels, **options):
    return ReportSample(f"Question {name}?", None, [("heading", *answer(name, *labels, **options))])


SAMPLES = [
    sample("a", S, S, score=0.9),
    sample("b", C, S, U, score=0.4),
    sample("c", U, score=0.5),
    sample("d"),
    sample("e", C, C, C, C, score=0.1),
    sample("f", None),
]


@pytest.fixture
def page(visit, tmp_path):
    return visit(write_report(tmp_path / "page.html", "Title", "Note.", [{"measure": "precision"}], SAMPLES))


def names(page):
    return [re.search(r"Question (\w+)", text)[1] for text in page.locator("#answers h3").all_inner_texts()]


def test_filters_by_label(page):
    counts = {
        text.rsplit(" ", 1)[0]: int(text.rsplit(" ", 1)[1])
        for text in page.locator("fieldset button").all_inner_texts()
    }
    assert counts == {
        "supported by the evidence": 2,
        "neither stated nor contradicted": 2,
        "contradicted by the evidence": 2,
        "could not be judged": 1,
        "nothing is labelled": 1,
    }
    contradicted = page.get_by_role("button", name="contradicted by the evidence 2")
    contradicted.click()
    assert contradicted.get_attribute("aria-pressed") == "true" and names(page) == ["b", "e"]
    assert page.get_by_role("status").inner_text() == "2 of 6 answers"
    page.get_by_role("button", name="could not be judged 1").click()
    assert names(page) == ["b", "e", "f"]  # several at once
    contradicted.press("Enter")
    assert names(page) == ["f"]
    page.get_by_role("button", name="Reset").click()
    page.wait_for_selector("#answers section:nth-child(6)")
    assert names(page) == list("abcdef") and page.locator("[aria-pressed=true]").count() == 0


def test_searches_questions_and_answers_and_no_evidence(page):
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.type("sentence 3  OF")
    assert names(page) == ["e"]
    page.fill("#search", "Question C")
    assert names(page) == ["c"] and page.evaluate("CSS.highlights.get('found').size") == 1
    page.fill("#search", "heading")
    assert names(page) == []
    page.fill("#search", "ireland")
    assert names(page) == [] and page.get_by_role("status").inner_text() == "0 of 6 answers"
    page.fill("#search", "")
    assert len(names(page)) == 6 and page.evaluate("CSS.highlights.get('found').size") == 0
    # With a filter, both hold.
    page.fill("#search", "sentence 0")
    page.get_by_role("button", name="neither stated nor contradicted 2").click()
    assert names(page) == ["b", "c"]


def test_search_knows_accents_and_the_right_answer(visit, tmp_path):
    shown = [ReportSample(f"Question {name}?", gold, [("h", text, Verification())]) for name, gold, text in [
        ("a", "Ulm", "Caf\u00e9"), ("b", None, "\u0130stanbul"), ("c", None, "Cafe\u0301"), ("d", None, "\ufb01ne"),
    ]]  # fmt: skip
    page = visit(write_report(tmp_path / "page.html", "t", "n", [], shown))
    searched = {"cafe": "ac", "CAF\u00c9": "ac", "istanbul": "b", "fine": "d", "ulm": "a", "right answer": ""}
    for text, expected in searched.items():
        page.fill("#search", text)
        assert "".join(names(page)) == expected, text


def test_search_knows_the_questions_of_turns(visit, tmp_path):
    turns = [("turn 1: Where is Cork?", "In Ireland.", Verification()), ("turn 2", "Yes.", Verification())]
    shown = [ReportSample("Question talk?", None, turns, sources=[(0, ()), (0, ())]), sample("a", S)]
    page = visit(write_report(tmp_path / "page.html", "t", "n", [], shown))
    page.fill("#search", "where is cork")
    assert names(page) == ["talk"] and page.get_by_role("status").inner_text() == "1 of 2 answers"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("row order", "abcdef"),
        ("precision, lowest first", "cebadf"),  # 0, 0, 1/3, 1, unknown, unknown
        ("precision, highest first", "abcedf"),
        ("claims, most first", "ebacdf"),  # 4, 3, 2, 1, 0, unknown
        ("claims, fewest first", "dcabef"),
        ("score, lowest first", "ebcadf"),
        ("score, highest first", "acbedf"),
    ],
)
def test_sorts_with_what_is_unknown_last(page, order, expected):
    page.get_by_label("Sort by").select_option(order)
    assert "".join(names(page)) == expected


def test_rows_keep_their_order_where_the_worst_come_first(visit, tmp_path):
    rows = [{"id": f"r{n}", "completion": text, "evidence": EVIDENCE} for n, text in enumerate(
        ["Cork is a city in Ireland.", "Cork is a city in France.", "Cork is a city in Ireland. Bees fly."]
    )]  # fmt: skip
    path = tmp_path / "page.html"
    hf_factuality.verify(rows, html=path)
    page = visit(path)
    assert page.locator("#answers h3").all_inner_texts() == ["r1 row 2", "r2 row 3", "r0 row 1"]
    assert page.locator("#sort").evaluate("it => it.selectedOptions[0].text") == "precision, lowest first"
    page.get_by_label("Sort by").select_option("row order")
    assert page.locator("#answers h3").all_inner_texts() == ["r0 row 1", "r1 row 2", "r2 row 3"]


def test_evidence_by_keyboard(page):
    page.locator("#answers section").nth(1).focus()
    page.keyboard.press("Tab")
    mark, panel = page.locator("#answers mark").nth(2), page.get_by_role("dialog", name="Evidence")
    assert mark.evaluate("it => it === document.activeElement") and not panel.is_visible()
    assert mark.get_attribute("role") == "button"
    assert mark.get_attribute("aria-label") == "contradicted by the evidence: Sentence 0 of b."
    assert mark.evaluate("it => parseFloat(getComputedStyle(it).outlineWidth)") >= 2, "the focus can be seen"
    page.keyboard.press("Enter")
    assert panel.is_visible() and mark.get_attribute("aria-expanded") == "true"
    text = panel.inner_text()
    for part in ("contradicted by the evidence", "score 0.40", "Sentence 0 of b.", "it is so", EVIDENCE):
        assert part in text
    assert page.evaluate("document.activeElement.id") == "panel"
    page.keyboard.press("Escape")
    assert not panel.is_visible() and mark.evaluate("it => it === document.activeElement")
    assert mark.get_attribute("aria-expanded") == "false"
    page.keyboard.press("Tab")
    page.keyboard.press(" ")
    assert "supported by the evidence" in panel.inner_text() and "Sentence 1 of b." in panel.inner_text()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the button that closes it
    assert not panel.is_visible()


def test_evidence_by_click_stays_beside_its_sentence(visit, tmp_path):
    shown = [
        sample(str(n), S, C, text=f"Sentence {{}} of answer {{}}, {'which is rather long, ' * 5}indeed.")
        for n in range(30)
    ]
    page = visit(write_report(tmp_path / "page.html", "t", "n", [], shown), width=400, height=600)
    for place in (0, 17, 59):
        mark = page.locator("#answers mark").nth(place)
        mark.scroll_into_view_if_needed()
        mark.click()
        assert f"of answer {place // 2}," in page.locator("#panel").inner_text()
        over, sentence = page.locator("#panel").bounding_box(), mark.bounding_box()
        assert 0 <= sentence["y"] and sentence["y"] + sentence["height"] <= over["y"] + 1
        mark.click()
        assert not page.locator("#panel").is_visible()
    # Whoever marks text wants to copy it.
    page.locator("#answers mark").nth(0).select_text()
    page.locator("#answers mark").nth(0).dispatch_event("click")
    assert not page.locator("#panel").is_visible()


def test_keys_go_from_answer_to_answer(page):
    focused = "document.activeElement.querySelector('h3')?.textContent"
    expected = ["a", "b", "c", "b"]
    for key, name in zip(["j", "ArrowRight", "j", "k"], expected, strict=True):
        page.keyboard.press(key)
        assert page.evaluate(focused) == f"Question {name}?"
    page.locator("#answers mark").nth(2).click()
    page.keyboard.press("j")  # from the answer whose evidence is open
    assert page.evaluate(focused) == "Question c?" and not page.locator("#panel").is_visible()
    for _ in range(9):
        page.keyboard.press("j")
    assert page.evaluate(focused) == "Question f?"
    # Readers of screens have such keys of their own.
    page.get_by_text("Keys", exact=True).click()
    page.get_by_label("Keys of one character").uncheck()
    page.locator("#answers section").nth(1).focus()
    page.keyboard.press("j")
    assert page.evaluate(focused) == "Question b?"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == "Question c?"


def compared(name, one, two):
    sides = [(when, f"Text {name} {when}.", one_label) for when, one_label in (("before", one), ("after", two))]
    spans = [(when, text, Verification((LabeledSpan(0, len(text), label),))) for when, text, label in sides]
    return ReportSample(f"Question {name}?", "gold", spans)


def test_comparisons(visit, tmp_path):
    pairs = [("a", S, S), ("b", C, N), ("c", S, C), ("d", C, N), ("e", C, C), ("f", None, S)]
    meanings = {S: "right", C: "wrong", N: "declined"}
    path = write_report(tmp_path / "page.html", "t", "n", [], [compared(*it) for it in pairs], meanings)
    page = visit(path)
    before, after = (
        page.get_by_role("group", name="Answers by outcome before"),
        page.get_by_role("group", name="Answers by outcome after"),
    )
    assert before.get_by_role("button").all_inner_texts() == ["right 2", "wrong 3", "could not be judged 1"]
    assert after.get_by_role("button").all_inner_texts() == ["right 2", "wrong 2", "declined 2"]
    changed = page.get_by_role("button", name="changed 3")  # what is not known of "f" has not changed
    changed.click()
    assert names(page) == ["b", "c", "d"]
    changed.click()
    before.get_by_role("button", name="wrong").click()
    assert names(page) == ["b", "d", "e"]
    after.get_by_role("button", name="declined").click()
    assert names(page) == ["b", "d"]
    one, two = (page.locator("#answers section").first.locator(".text").nth(side).bounding_box() for side in (0, 1))
    assert one["y"] == two["y"] and one["width"] == pytest.approx(two["width"], abs=1) and one["x"] < two["x"]
    # What stands below starts at one height, however long the texts are.
    long, short = (("before", *answer("x", *[S] * 40)), ("after", *answer("x", C)))
    sides = visit(
        write_report(tmp_path / "long.html", "t", "n", [], [ReportSample("Question x?", None, [long, short])])
    )
    end = 0
    for part in ("h4", ".text", ".below"):
        boxes = [it.bounding_box() for it in sides.locator(f"#answers {part}").all()]
        assert len(boxes) == 2 and boxes[0]["y"] == boxes[1]["y"] >= end
        end = max(box["y"] + box["height"] for box in boxes)
    narrow = visit(path, width=320)
    one, two = (narrow.locator("#answers section").first.locator(".text").nth(side).bounding_box() for side in (0, 1))
    assert one["x"] == two["x"] and one["y"] + one["height"] <= two["y"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only(visit, tmp_path, scheme):
    table = [dict.fromkeys(("measure", "score", "interval", "answers", "parts"), "a long value")]
    long = ReportSample(
        "Q" * 300, "g" * 200, [(w, *answer("x" * 200, S, C, evidence="e" * 400)) for w in ("before", "after")]
    )
    title = "Factuality of /a/very/long/path/" + "y" * 80
    page = visit(
        write_report(tmp_path / "p.html", title, "Note.", table, [*SAMPLES, long]), width=320, color_scheme=scheme
    )
    page.get_by_text("Keys", exact=True).click()
    page.locator("#answers mark").last.click()
    for it in page.locator("#answers summary").all():
        it.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    boxes = [it.bounding_box() for it in page.locator("button, input, select, mark, #panel").all() if it.is_visible()]
    assert len(boxes) > 20 and all(box["x"] >= 0 and box["x"] + box["width"] <= 320 for box in boxes)


MANY = 1000


@pytest.fixture
def many(tmp_path):
    return write_report(tmp_path / "many.html", "t", "n", [], [sample(str(n), S, C) for n in range(MANY)])


def test_without_javascript_the_first_200_are_there(visit, many):
    page = visit(many, java_script_enabled=False)
    html = page.content()
    sections = page.locator("#answers section")
    assert sections.count() == 200 and sections.nth(199).is_visible()
    assert page.get_by_text("The other 800 answers need JavaScript.").is_visible()
    assert not page.locator("#controls").is_visible() and page.locator(".legend").is_visible()
    assert not page.locator("#more").is_visible() and not page.locator("#panel").is_visible()
    item = sections.first.locator(".labels li").nth(1)
    assert not item.is_visible()
    sections.first.get_by_text("Labels and evidence (2)").click()
    assert item.is_visible() and EVIDENCE in item.inner_text() and "contradicted by the evidence" in item.inner_text()
    assert html.count("Question 999?") == 1


def test_many_answers_come_as_they_are_needed(visit, many):
    page = visit(many)
    assert page.get_by_role("status").inner_text() == f"{MANY} answers"
    page.fill("#search", "question 99")
    assert names(page) == ["99", *(str(n) for n in range(990, 1000))]
    page.locator("#answers mark").last.click()
    assert "Sentence 1 of 999." in page.locator("#panel").inner_text()
    page.fill("#search", "")
    page.wait_for_timeout(300)
    laid_out = page.locator("#answers section").count()
    assert 50 <= laid_out <= 200
    page.locator("#more").scroll_into_view_if_needed()
    page.wait_for_selector(f"#answers section:nth-child({laid_out + 1})")
    assert names(page) == [str(n) for n in range(page.locator("#answers section").count())]
    # By key past what is laid out, before more comes by itself.
    last, focused = page.evaluate(
        """() => {
            const last = document.querySelector("#answers section:last-child");
            last.focus({ preventScroll: true });
            last.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
            return [last, document.activeElement].map((it) => it.querySelector("h3").textContent);
        }"""
    )
    assert int(focused.strip("Question ?")) == int(last.strip("Question ?")) + 1


def test_print_has_everything_and_no_controls(visit, many):
    page = visit(many)
    page.pdf()
    assert page.locator("#answers section").count() == MANY
    page.emulate_media(media="print")
    for hidden in ("#controls", "#panel", "#more"):
        assert not page.locator(hidden).is_visible()
    assert page.locator(".legend").is_visible()
    item = page.locator("#answers .labels li").last
    # Closed again after the print; the style opens them for paper.
    assert not page.locator("#answers details").last.get_attribute("open")
    assert item.is_visible() and EVIDENCE in item.inner_text()


def test_hostile_texts_do_nothing(visit, tmp_path):
    texts = [
        *hostile.MARKUP,
        "</script><script>hacked=1</script>",
        "</template><script>hacked=1</script>",
        "\u202ehacked",
    ]
    texts += [
        "<!--",
        "<!--<script>",
        "]]>",
        "</style><img src=x onerror=hacked=1>",
        "javascript:hacked=1",
        '"autofocus onfocus=hacked=1 x="',
    ]
    spans = [Verification((LabeledSpan(0, len(text), C, evidence=text, claim=text, reason=text),)) for text in texts]
    shown = [ReportSample(text, text, [(text, text, it)], place=text) for text, it in zip(texts, spans, strict=True)]
    page = visit(write_report(tmp_path / "p.html", texts[0], texts[-1], [{texts[1]: texts[2]}], shown * 10))
    sections = page.locator("#answers section").count()
    assert sections == min(200, 10 * len(texts))
    for mark in page.locator("#answers mark").all()[: len(texts)]:
        if mark.is_visible():
            mark.press("Enter")
            assert page.locator("#panel-text script, #panel-text img").count() == 0
            page.keyboard.press("Escape")
    page.fill("#search", "hacked")
    assert page.evaluate("typeof hacked") == "undefined" and page.locator("#answers img, #answers script").count() == 0
    for character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069":
        assert character not in page.content()


def test_the_policy_forbids_what_is_not_ours(visit, tmp_path):
    page = visit(write_report(tmp_path / "p.html", "t", "n", [], SAMPLES))
    assert visit.wrong == []
    assert "TrustedHTML" in page.evaluate(
        "(() => { try { document.body.innerHTML = '<p>'; } catch (e) { return e.message; } })()"
    )
    page.evaluate(
        """() => {
            const [image, style] = ["img", "style"].map((it) => document.createElement(it));
            image.src = "https://example.invalid/x.png"; style.textContent = "body { display: none }";
            document.body.append(image, style);
        }"""
    )
    assert page.locator("h1").is_visible()
    page.wait_for_timeout(200)
    # All three were refused, each with a line in the console.
    assert any("img-src" in it or "default-src" in it for it in visit.wrong)
    assert any("style" in it for it in visit.wrong)
    assert page.locator("img").evaluate("it => it.naturalWidth") == 0
    visit.wrong.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["answers", "comparison"])
def test_axe_finds_nothing(visit, tmp_path, scheme, kind):
    if not AXE or not Path(AXE).exists():
        pytest.skip("axe-core is not here; set HF_FACTUALITY_AXE to its axe.min.js")
    every = [ReportSample("Q?", "gold", [("heading", "Ann was born in Cork [1].", Verification())], place="line 1")]
    every += [sample(str(n), label) for n, label in enumerate(Label)] + SAMPLES
    pairs = [compared("a", S, C), compared("b", N, None)]
    path = write_report(
        tmp_path / "p.html", "Title", "Note.", [{"measure": "x"}], every if kind == "answers" else pairs
    )
    page = visit(path, color_scheme=scheme)
    page.get_by_text("Keys", exact=True).click()
    page.locator("#answers summary").first.click()
    page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    for step in ("as it opens", "filtered, with evidence"):
        if step != "as it opens":
            page.locator("fieldset button").first.click()
            page.locator("#answers mark").first.click()
        found = page.evaluate("axe.run()")
        wrong = [(it["id"], [node["html"][:200] for node in it["nodes"]]) for it in found["violations"]]
        assert wrong == [], step
        assert len(found["passes"]) > 20, json.dumps(found)[:300]
