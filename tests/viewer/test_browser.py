"""The viewer and the demo in headless Chromium, by mouse and keyboard: filter, search, evidence, comparison, curves, dark, phone."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_factuality.viewer.space import write_demo_space, write_view_space
from tests.report.test_browser import AXE, chromium  # noqa: F401
from tests.viewer.runs import make_run


pytest.importorskip("gradio", reason="Gradio is not installed")
pytestmark = pytest.mark.slow
PACKAGE = Path(__file__).resolve().parents[2]


def start(words, cwd=None, **environment):
    """A server, and its address."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=cwd
    )
    return process


def address_of(process):
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError(f"no address; exit status {process.wait()}")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [str(make_run(folder / name, shift)) for name, shift in (("one", 0.0), ("two", 0.25))]
    processes = [start(["-m", "hf_factuality", "view", *words, "--port", "0"]) for words in (runs[:1], runs)]
    yield [address_of(it) for it in processes]
    for process in processes:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, "SIGTERM ends it as planned"


@pytest.fixture
def visit(chromium):  # noqa: F811
    """Opens an address. Nothing outside this machine may be asked, no error logged, and no text of a model run."""
    contexts, wrong = [], []

    def visit(address, width=1100, height=900, **settings):
        context = chromium.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        own = ("http://127.0.0.1:", "data:", "about:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(own) else wrong.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert wrong == []


def painted(page):
    return page.frame_locator(".painted iframe")


def choose(page, moment):
    field = page.get_by_label("Completions of")
    field.click()
    page.get_by_role("option", name=moment, exact=True).click()
    painted(page).get_by_text(f"{moment}.", exact=False).first.wait_for()


def names(page):
    texts = painted(page).locator("#answers h3").all_inner_texts()
    return [re.search(r"Question (\w+)", text)[1] for text in texts]


def test_filters_search_order_and_evidence(visit, served):
    page = visit(served[0])
    choose(page, "step 20")
    frame = painted(page)
    assert names(page) == ["0", "1", "2", "3"]
    frame.get_by_role("button", name="contradicted by the evidence 1").click()
    assert names(page) == ["1"]
    frame.get_by_role("button", name="Reset").click()
    frame.locator("#answers section:nth-child(4)").wait_for()
    frame.get_by_label("Sort by").select_option("reward, highest first")
    assert names(page) == ["0", "3", "2", "1"]
    frame.get_by_label("Verifier").select_option("Lexical")
    assert names(page) == ["3", "1"]
    frame.get_by_label("at least").fill("0.3")
    frame.get_by_label("at least").press("Enter")
    assert names(page) == ["3"]
    frame.get_by_role("button", name="Reset").click()
    frame.locator("#search").fill("question 2")
    assert names(page) == ["2"]
    frame.locator("#answers mark").first.click()
    assert "It says so." in frame.locator("#panel").inner_text() and "alert(1)" in frame.locator("#panel").inner_text()


def test_by_keyboard_alone(visit, served):
    page = visit(served[0])
    choose(page, "all steps")
    frame = painted(page)
    frame.locator("#search").focus()
    page.keyboard.type("sentence 1 of 1")
    assert names(page) == ["1", "1"]
    for _ in range(40):  # past the controls, to the first sentence
        page.keyboard.press("Tab")
        if frame.locator("#answers mark:focus").count():
            break
    page.keyboard.press("Enter")
    assert "It says so." in frame.locator("#panel").inner_text()
    page.keyboard.press("Escape")
    assert frame.locator("#panel").is_hidden() and frame.locator("#answers mark:focus").count() == 1
    frame.get_by_label("Step").select_option("10")
    assert names(page) == ["1"]


def test_the_steps_and_what_has_come_since(visit, served):
    page = visit(served[0])
    choose(page, "step 10")
    page.get_by_role("button", name="Next").click()
    painted(page).get_by_text("step 20.", exact=False).first.wait_for()
    page.get_by_role("button", name="Previous").click()
    painted(page).get_by_text("step 10.", exact=False).first.wait_for()
    page.get_by_role("button", name="Reload").click()
    assert page.get_by_label("Completions of").input_value() == "step 10"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save page").click()
    assert "Question 1?" in Path(download.value.path()).read_text(encoding="utf-8")


def test_two_runs_and_their_curves(visit, served):
    page = visit(served[1])
    choose(page, "step 20")
    frame = painted(page)
    headings = frame.locator("#answers h4").all_inner_texts()
    assert headings == ["one", "two"] * 4
    first, second = (frame.locator("#answers h4").nth(place).bounding_box() for place in (0, 1))
    assert first["y"] == second["y"] and first["x"] < second["x"]
    frame.get_by_label("Sort by").select_option("change of reward, highest first")
    assert names(page)[0] == "0"
    choose(page, "after training")
    frame = painted(page)
    frame.locator('fieldset[data-side="0"]').get_by_role("button", name="declined 1").click()
    assert names(page) == ["0"]
    page.get_by_role("button", name="Curves").click()
    page.locator("canvas, svg.marks").first.wait_for()
    page.get_by_label("Figure").click()
    page.get_by_role("option", name="loss", exact=True).click()
    page.wait_for_timeout(1000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_and_both_modes(visit, served, scheme):
    page = visit(served[1], width=360, height=740, color_scheme=scheme)
    painted(page).locator("#answers h3").first.wait_for()
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    inner = page.frames[-1]
    assert not inner.evaluate("document.documentElement.scrollWidth > innerWidth")
    red, *_ = map(int, re.findall(r"\d+", inner.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert (red < 60) is (scheme == "dark")


@pytest.mark.skipif(AXE is None, reason="HF_FACTUALITY_AXE names no axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(visit, served, scheme):
    page = visit(served[1], color_scheme=scheme)
    painted(page).locator("#answers h3").first.wait_for()
    page.get_by_role("button", name="Curves").click()
    page.locator("canvas, svg.marks").first.wait_for()
    script = Path(AXE).read_text(encoding="utf-8")
    for frame in page.frames:
        frame.evaluate(script)
        found = frame.evaluate("axe.run(document, {iframes: false})")["violations"]
        assert [(it["id"], it["nodes"][0]["html"][:200]) for it in found] == []


def test_a_name_that_is_not_this_machine_is_refused(served):
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    with pytest.raises(HTTPError) as error:
        urlopen(Request(served[0], headers={"Host": "attacker.example"}))
    assert error.value.code == 400


def test_the_demo_judges_what_is_pasted(visit):
    process = start(["-m", "hf_factuality", "demo", "--verifier", "lexical", "--port", "0"])
    try:
        page = visit(address_of(process))
        page.get_by_role("button", name="Verify").click()
        frame = painted(page)
        frame.locator("#answers mark.supported").first.wait_for()
        page.get_by_label("Completion", exact=True).fill("")
        page.get_by_role("button", name="Verify").click()
        page.get_by_text("paste a completion").wait_for()
        if AXE:
            page.evaluate(Path(AXE).read_text(encoding="utf-8"))
            found = page.evaluate("axe.run(document, {iframes: false})")["violations"]
            assert [(it["id"], it["nodes"][0]["html"][:200]) for it in found if it["impact"] != "minor"] == []
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("kind", ["view", "demo"])
def test_a_space_runs(visit, tmp_path, kind):
    """As the Hub runs it: the folder alone, and Gradio's own settings from the environment."""
    run = make_run(tmp_path / "run")
    space = (
        write_view_space(tmp_path / "space", run)
        if kind == "view"
        else write_demo_space(tmp_path / "space", ["lexical"])
    )
    environment = {
        "GRADIO_SERVER_PORT": "7968",
        "GRADIO_SERVER_NAME": "127.0.0.1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    process = start(["app.py"], cwd=space, **environment)
    try:
        wait_for("http://127.0.0.1:7968")
        page = visit("http://127.0.0.1:7968")
        if kind == "view":
            painted(page).get_by_text("Question 0?").first.wait_for()
        else:
            page.get_by_role("button", name="Verify").wait_for()
    finally:
        process.terminate()
        process.wait(30)


def wait_for(address):
    from urllib.request import urlopen

    for _ in range(120):
        try:
            return urlopen(address).read()
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"nothing answers at {address}")
