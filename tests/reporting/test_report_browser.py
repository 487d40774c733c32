"""The report in Chromium: it renders, loads nothing, and answers to mouse and keyboard."""

import re
import shutil

import numpy as np
import pytest

from report_attacks import ATTACKS, file_page, refined_page
from report_cells import BATCHES, TYPES, make_cells
from scbatchprox import report

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Bokeh's models by name.
MODEL = "Bokeh.documents[0].get_model_by_name"


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)), None)
    assert path, f"Expected one of {NAMES} on the PATH, found none."
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def file(html, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture
def show(browser, file):
    """Open the report; at the end nothing else was asked for, and nothing went wrong."""
    problems, contexts = [], []

    def opened(path=file, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: r.url == path.as_uri() or problems.append(r.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("console", lambda m: m.type in ("error", "warning") and problems.append(m.text))
        page.goto(path.as_uri())
        page.wait_for_function(f"window.Bokeh && {MODEL}('after') && Bokeh.documents[0].is_idle")
        return page

    opened.problems = problems
    yield opened
    for context in contexts:
        context.close()
    assert not problems


def shown(page):
    """How many cells are not hidden by a filter."""
    return page.evaluate(
        f"""(() => {{ const chosen = {MODEL}('after').renderers[0].view.filter.booleans;
        return chosen == null ? -1 : chosen.filter(Boolean).length }})()"""
    )


def test_everything_is_drawn(show):
    page = show(viewport={"width": 1280, "height": 900})
    assert page.title() == "Batch refinement of an AnnData in memory"
    canvases = page.evaluate(
        """[...document.querySelectorAll('figure')].map((figure) => {
        const all = []; const walk = (node) => { all.push(...node.querySelectorAll('canvas'));
          for (const one of node.querySelectorAll('*')) if (one.shadowRoot) walk(one.shadowRoot) };
        walk(figure);
        return all.map((c) => c.getContext('2d')?.getImageData(0, 0, c.width, c.height).data
          .reduce((n, x, i) => n + (i % 4 == 3 && x > 99), 0) ?? 0)
        })"""
    )
    assert [max(pixels) > 3000 for pixels in canvases] == [True, True]
    assert page.locator(".verdict h2").inner_text().startswith("All 3 batches")


def test_lists_hide_batches_and_types(show):
    page = show()
    obs = make_cells().obs
    page.get_by_label(BATCHES[0], exact=True).uncheck()
    assert shown(page) == (obs["batch"] != BATCHES[0]).sum()
    page.get_by_label(TYPES[1], exact=True).uncheck()
    assert shown(page) == ((obs["batch"] != BATCHES[0]) & (obs["type"] != TYPES[1])).sum()
    page.get_by_role("button", name="none", exact=True).first.click()
    assert shown(page) == 0
    page.get_by_role("button", name="all", exact=True).first.click()
    page.get_by_role("button", name="all", exact=True).last.click()
    assert shown(page) == len(obs)


def test_lists_work_by_keyboard(show):
    page = show()
    first = page.get_by_label(sorted(BATCHES)[0], exact=True)
    first.focus()
    page.keyboard.press("Space")
    assert not first.is_checked()
    outline = first.evaluate("e => getComputedStyle(e).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert shown(page) == (make_cells().obs["batch"] == sorted(BATCHES)[2]).sum()


def spans(page):
    """What each plot shows: ends of its ranges, across and upwards."""
    return page.evaluate(
        f"""['before', 'after'].map((name) => {{ const {{x_range, y_range}} = {MODEL}(name);
        return [x_range.start, x_range.end, y_range.start, y_range.end] }})"""
    )


def pressed(page, name):
    """Press a button by keyboard; return what the plots showed and show, as ((x, y) centre, width)."""
    before = spans(page)[0]
    page.get_by_role("button", name=name, exact=True).focus()
    page.keyboard.press("Enter")
    both = spans(page)
    assert both[0] == both[1]
    return tuple((((x0 + x1) / 2, (y0 + y1) / 2), x1 - x0) for x0, x1, y0, y1 in (before, both[0]))


def test_plots_work_by_keyboard(show):
    page = show()
    (centre, width), (same, smaller) = pressed(page, "zoom in")
    np.testing.assert_allclose(same, centre)
    assert smaller < 0.7 * width
    for name, (x, y) in {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}.items():
        (was, size), (now, still) = pressed(page, name)
        assert still == pytest.approx(size)
        assert np.sign(np.round(np.subtract(now, was), 9)).tolist() == [x, y]
    (_, size), (_, larger) = pressed(page, "zoom out")
    assert larger == pytest.approx(width)
    _, (whole, full) = pressed(page, "all cells")
    np.testing.assert_allclose((*whole, full), (*centre, width))


def test_colours_follow_the_choice(show):
    page = show()
    field = f"{MODEL}('before').renderers[0].glyph.fill_color.field"
    assert page.evaluate(field) == "batch"
    page.get_by_text("type", exact=True).first.click()
    assert page.evaluate(field) == "type"
    page.get_by_text("distance moved", exact=True).first.click()
    assert page.evaluate(field) == "moved"


def test_pointing_at_a_cell_tells_what_it_is(show):
    page = show(viewport={"width": 1280, "height": 900})
    page.locator("figure").first.scroll_into_view_if_needed()
    x, y = page.evaluate(
        f"""(() => {{ const plot = {MODEL}('before'), view = Bokeh.index.find_one(plot);
        const data = plot.renderers[0].data_source.data, box = view.el.getBoundingClientRect();
        const {{x_scale, y_scale}} = view.frame;
        return [box.x + x_scale.compute(data.x_before[0]), box.y + y_scale.compute(data.y_before[0])]
        }})()"""
    )
    page.mouse.move(x + 3, y)
    page.mouse.move(x, y)
    tooltip = page.locator(".bk-tooltip-row-value")
    tooltip.first.wait_for(timeout=3000)
    batch, kind, moved = (text.strip() for text in tooltip.all_inner_texts())
    assert batch in BATCHES
    assert kind in TYPES
    assert re.fullmatch(r"\d\.\d\d of the batch's spread", moved)


def test_plots_zoom_together(show):
    page = show(viewport={"width": 1280, "height": 900})
    figure = page.locator("figure").first
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    before = page.evaluate(f"{MODEL}('after').x_range.end - {MODEL}('after').x_range.start")
    page.mouse.move(box["x"] + 150, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 250, steps=5)
    page.mouse.up()
    page.wait_for_timeout(200)
    after = page.evaluate(f"{MODEL}('after').x_range.end - {MODEL}('after').x_range.start")
    assert after < before / 2


def rows(page):
    """The first column of the sortable table, from top to bottom."""
    found = page.evaluate(
        f"""(() => {{ const el = Bokeh.index.find_one({MODEL}('sortable')).shadow_el;
        const rows = [...el.querySelectorAll('.slick-row')].filter((row) => row.querySelector('.l0'));
        rows.sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top);
        return rows.map((row) => row.querySelector('.l0').textContent) }})()"""
    )
    return found


def test_the_table_is_sorted_by_a_click_and_by_keyboard(show):
    page = show(viewport={"width": 1280, "height": 900})
    n = make_cells().obs["batch"].value_counts()
    page.locator(".slick-header-column", has_text="batch").first.click()
    assert rows(page) == sorted(BATCHES)
    select = page.get_by_label("Sort by")
    select.focus()
    select.select_option("cells")
    page.wait_for_timeout(200)
    assert sorted(rows(page)) == sorted(BATCHES)
    source = f"{MODEL}('sortable').source.data"
    assert page.evaluate(f"Array.from({source}.n_cells)") == sorted(n, reverse=True)


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_needs_no_sideways_scrolling(show, width):
    page = show(viewport={"width": width, "height": 800}, has_touch=True, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("innerWidth") == width
    widths = [page.locator("figure").nth(i).bounding_box()["width"] for i in range(2)]
    assert min(widths) > 0.8 * width


#: Contrast of every text with what is behind it, in the page and inside Bokeh's parts.
CONTRAST = """(() => {
  const rgba = (text) => [...text.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const light = ([r, g, b]) => [r, g, b].map((x) => { x /= 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4 })
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => top.slice(0, 3).map((x, i) => x * top[3] + below[i] * (1 - top[3]));
  const behind = (node) => { const layers = [];
    for (let at = node; at; at = at.parentElement ?? at.getRootNode().host)
      layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]) };
  const found = [];
  const walk = (root) => { for (const node of root.querySelectorAll('*')) {
    if (node.shadowRoot) walk(node.shadowRoot);
    const text = [...node.childNodes].some((c) => c.nodeType == 3 && c.data.trim());
    if (!text || !node.checkVisibility() || node.matches('script, style, option, noscript')) continue;
    const back = behind(node), a = light(over(rgba(getComputedStyle(node).color), back)), b = light(back);
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.textContent.slice(0, 40)]) } };
  document.querySelector('details').open = true;
  walk(document.body);
  return found.sort((x, y) => x[0] - y[0]) })()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(show, scheme):
    page = show(color_scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 100
    assert found[0][0] >= 4.5, found[:8]
    page_colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page_colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]


def test_a_print_has_the_plain_table(show):
    page = show(viewport={"width": 1000, "height": 900})
    page.emulate_media(media="print")
    assert not page.locator(".sorted").is_visible()
    assert page.locator(".plain table").is_visible()


def test_nothing_is_cut_off_on_paper(show, tmp_path):
    names, types = [f"a batch {i}" for i in range(20)], [f"a long type {i}" for i in range(18)]
    path = tmp_path / "many.html"
    report(
        make_cells(2000, batches=names, types=types), "batch", label_key="type",
        keep=["condition", "sex"], out=path, view="pca",
    )  # fmt: skip
    # As wide as a page of A4 between its margins, and as a page of letter paper.
    for width in (1032, 965):
        page = show(path, viewport={"width": width, "height": 700})
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        plots = [page.locator("figure").nth(i).bounding_box() for i in range(2)]
        assert plots[0]["x"] + plots[0]["width"] <= plots[1]["x"]
        assert plots[1]["x"] + plots[1]["width"] <= width
        legend = page.locator(".lists label")
        assert legend.count() == 38
        assert all(legend.nth(i).is_visible() for i in (0, 19, 37))
        assert not page.get_by_role("button", name="zoom in").is_visible()


def test_tables_are_there_without_javascript(browser, file):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    page.locator("summary").click()
    assert page.locator(".plain tbody tr").count() == 3
    context.close()


def test_forty_batches(show, tmp_path):
    names = [f"batch {i}" for i in range(40)]
    path = tmp_path / "many.html"
    report(make_cells(2000, batches=names), "batch", out=path, view="pca", target="population")
    page = show(path)
    assert page.locator("fieldset input").count() == 40
    page.get_by_label("batch 39", exact=True).uncheck()
    assert shown(page) == 2000 - int(
        (make_cells(2000, batches=names).obs["batch"] == "batch 39").sum()
    )
    assert np.isfinite(page.evaluate(f"{MODEL}('after').x_range.end"))


#: Parts of a page, also inside Bokeh's, that would run, load or lead somewhere.
LIVE = """(() => {
  const found = [], ours = 'a[href="#batches"]';
  const walk = (root) => { for (const node of root.querySelectorAll('*')) {
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const {name, value} of node.attributes)
      if (name.startsWith('on') || /^\\s*javascript:/i.test(value) || name == 'srcdoc')
        found.push(`${node.nodeName} ${name}`);
    if (node.matches('iframe, frame, object, embed, base, form, link, meta[http-equiv=refresh]')
        || node.matches('img:not([src^="data:"])') || (node.matches('[href]') && !node.matches(ours)))
      found.push(node.outerHTML.slice(0, 99)) } };
  walk(document);
  return found })()"""


def used(page):
    """Do all that a reader can do."""
    page.locator("details summary").click()
    headers = page.locator(".slick-header-column")
    for i in range(headers.count()):
        headers.nth(i).scroll_into_view_if_needed()
        headers.nth(i).click()
        headers.nth(i).hover()
    select = page.get_by_label("Sort by")
    for i in range(select.locator("option").count()):
        select.select_option(index=i)
    for box in page.locator(".lists input").all():
        box.uncheck()
        box.check()
    for button in page.locator(".control button, .control .bk-btn").all():
        button.click()
    page.locator("figure").first.scroll_into_view_if_needed()
    points = page.evaluate(
        f"""(() => {{ const plot = {MODEL}('before'), view = Bokeh.index.find_one(plot);
        plot.renderers[0].view.filter.booleans = null;
        const data = plot.renderers[0].data_source.data, box = view.el.getBoundingClientRect();
        const {{x_scale, y_scale}} = view.frame;
        return [0, 1, 2].map((i) => [box.x + x_scale.compute(data.x_before[i]),
          box.y + y_scale.compute(data.y_before[i])]) }})()"""
    )
    for x, y in points:
        page.mouse.move(x + 3, y)
        page.mouse.move(x, y)
        page.locator(".bk-tooltip-row-value").first.wait_for(timeout=3000)
    for _ in range(30):
        page.keyboard.press("Tab")
    page.emulate_media(media="print")
    page.pdf()
    page.emulate_media(media="screen")


@pytest.mark.parametrize("kind", ATTACKS)
@pytest.mark.parametrize("made", ["refined", "file"])
def test_attacks_stay_text_whatever_a_reader_does(show, tmp_path, made, kind):
    text, path = ATTACKS[kind], tmp_path / "report.html"
    html = refined_page(text) if made == "refined" else file_page(text, tmp_path)
    path.write_text(html, encoding="utf-8")
    page = show(path, viewport={"width": 1280, "height": 900})
    used(page)
    assert page.evaluate("window.ran") is None
    assert page.url == path.as_uri()
    assert page.evaluate(LIVE) == []
    assert page.locator("script").count() == html.count("</script>")
    titles = page.locator(".slick-header-column").all_inner_texts()
    titles = ["".join(title.split()) for title in titles]
    assert any(title.endswith("".join(f"{text} removed".split())) for title in titles)


def test_a_script_that_got_into_the_page_is_not_run(show, html, tmp_path):
    """Even if a text were taken as markup: the page's rules allow its own scripts only."""
    path = tmp_path / "report.html"
    attacks = "".join(ATTACKS[kind] for kind in ("link", "image", "drawing", "focus", "frame"))
    assert html.count("</h1>") == 1
    path.write_text(html.replace("</h1>", f"</h1>{attacks}{ATTACKS['script']}"), encoding="utf-8")
    page, problems = show(path), show.problems
    page.get_by_text("click", exact=True).click()
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert page.url == path.as_uri()
    refused = [text for text in problems if "Content Security Policy" in text]
    assert len(refused) >= 5
    problems.clear()
