"""The report of a sweep, in a real browser where there is one: what clicks do, and that nothing goes wrong unseen."""

import json
import shutil
import subprocess

import polars
import pytest

from mercer.experiments import (
    ConfigurationError,
    Experiment,
    Store,
    Sweep,
    leaderboard,
    planned,
    read_plan,
    report,
    results,
)
from mercer.experiments.engine import run_cell
from mercer.experiments.leaderboard import short_names
from mercer.experiments.report import as_texts
from mercer.experiments.scores import distance
from mercer.experiments.sweep import Cell

EXACT = """
data: {type: curve, number: 1, num: 60}
stages:
  model:
    type: fit
    model:
      type: Model
      posterior: {type: Sparse, prior: {type: GP, kernel: {type: RBF, lengthscale: 0.3}}, inducing: {type: Points, Z: $X}}
      likelihood: {type: Gaussian, variance: 0.1}
    objective: ELBO
    optimiser: {type: adam, learning_rate: 0.01}
    steps: 20
scores: [nlpd, rmse, coverage]
"""
KERNEL = "stages.model.model.posterior.prior.kernel"
SWEEP = f"""
name: small <b>sweep</b>
experiment: exact.yaml
grid:
  seed: [0, 1, 2]
  {KERNEL}:
    short: {{type: RBF, lengthscale: 0.3}}
    "it's <i>long</i>": {{type: RBF, lengthscale: 1.0}}
  stages.model.optimiser.learning_rate: [0.01, 1.0]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Twelve cells: two failed, one missing."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "exact.yaml").write_text(EXACT)
    (folder / "small.yaml").write_text(SWEEP)
    sweep, root = Sweep.read(folder / "small.yaml"), folder / "runs"
    for cell in sweep.cells[:9]:
        run_cell(cell.experiment.document.value, "exact", cell.identity, str(root))
    for cell in sweep.cells[9:11]:
        Store(root).fail(cell.identity, "ValueError: <script>no</script>", "Traceback of it")
    planned(sweep, root, write=True)
    return root


def test_a_file_that_needs_no_other(root):
    path = report(root, details=2)
    text = path.read_text()
    assert path.parent == root and len(text) > 1e6
    assert "<title>small &lt;b&gt;sweep&lt;/b&gt;: a sweep of mercer</title>" in text
    own = text.replace(text[text.index("<script>") : text.index("<script>", text.index("<script>") + 10)], "")
    assert "http" not in own and "src=" not in own


def test_what_is_asked_for_and_not_there(root, command):
    with pytest.raises(ConfigurationError, match="no cell has a score 'test nlp'; did you mean 'test nlpd'"):
        report(root, by="test nlp")
    with pytest.raises(ConfigurationError, match="has no setting sed; did you mean 'seed'"):
        report(root, over=["sed"])
    code, out, err = command("sweep", "report", "--out", root / "nothing")
    assert code == 1 and not out and "has no sweep of its own; there are none" in err


def test_the_command(root, command, tmp_path):
    options = ("--by", "test rmse", "--each", "seed", "--details", 0, "--file", tmp_path / "page.html")
    assert command("sweep", "report", "--out", root, *options) == (0, f"{tmp_path / 'page.html'}\n", "")
    assert (tmp_path / "page.html").stat().st_size > 1e6


def test_leaderboard(root, command):
    table = leaderboard(root, by="test rmse")
    cells = results(root).filter(state="finished")
    assert table["cells"].to_list() == [len(cells.filter(pair)) for pair in _pairs(table)]
    assert table["test rmse"].to_list() == sorted(table["test rmse"])
    first = cells.filter(_pairs(table)[0])["test rmse"]
    assert table["test rmse"][0] == pytest.approx(first.mean())
    assert table["test rmse ±"][0] == pytest.approx(first.std() / len(first) ** 0.5)
    code, out, _ = command("sweep", "best", "--out", root, "--each", KERNEL, "--over", "seed", "--by", "test coverage")
    assert code == 0 and [line.split(",")[0] for line in out.splitlines()] == ["kernel", "short", "it's <i>long</i>"]


def test_pictures_of_the_best(root, command, tmp_path):
    """The cell of a row is the best of those that it is an average of; there is a picture for each."""
    table, cells = leaderboard(root, by="test rmse"), results(root).filter(state="finished")
    for row, pair in zip(table.iter_rows(named=True), _pairs(table), strict=True):
        assert row["cell"] == cells.filter(pair).sort("test rmse")["cell"][0]
    code, out, _ = command("sweep", "best", "--out", root, "--each", KERNEL, "--plot", tmp_path / "best.png")
    assert code == 0 and len(out.splitlines()) == 3
    assert (tmp_path / "best.png").read_bytes().startswith(b"\x89PNG")


def _pairs(table):
    """What tells the cells of each row of a table."""
    rate = "stages.model.optimiser.learning_rate"
    return [(polars.col(KERNEL) == row[0]) & (polars.col(rate) == row[1]) for row in table.iter_rows()]


def test_short_names():
    paths = ["data.number", "stages.a.kernel", "stages.b.kernel", "stages.a.M", "stages.a.M.of", "seed"]
    assert short_names(paths) == ["number", "a.kernel", "b.kernel", "a.M", "M.of", "seed"]


def test_numbers_stay_what_they_are():
    value = {"a": 1.0, "b": 1, "c": "1", "d": [True, None, 1e-7], "e": "x: y, z", "long": "word " * 40}
    texts = as_texts(value)
    assert texts["a"] == "1.0" and texts["b"] == "1" and texts["c"] == "'1'" and texts["d"][:2] == ["true", "null"]
    assert json.loads(texts["long"]) == value["long"]


def test_which_score_is_better():
    assert distance("nlpd", 1.0) < distance("nlpd", 2.0) < distance("nlpd", float("nan"))
    assert distance("accuracy", 0.9) < distance("accuracy", 0.8)
    assert distance("coverage", 0.88) < distance("coverage", 1.0)


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, or another one of this machine."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def html(root):
    return report(root).absolute()


@pytest.fixture
def page(browser, html):
    """The report; the test fails where the page logs an error, or asks for anything outside of it."""
    wrong, asked = [], []
    context = browser.new_context(offline=True, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(html.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def body(page):
    return [row.split("\t") for row in page.inner_text("#leaderboard tbody").splitlines()]


class TestInABrowser:
    def test_what_is_there(self, page):
        assert "12 cells: 9 finished, 2 failed, 1 missing" in page.inner_text("#summary")
        assert page.inner_text("h1") == "small <b>sweep</b>"
        # seeds are averaged over: two kernels, two rates
        rows = body(page)
        assert len(rows) == 4 and {row[2] for row in rows} == {"2", "3"} and "±" in rows[0][3]
        for place in ("#effects .plot .box", "#curves .chart .scatter", "#fits .plot .scatter"):
            assert page.locator(place).count() > 0
        assert page.locator("#failed tbody tr").count() == 3
        assert "<script>no</script>" in page.inner_text("#failed tbody")

    def test_means_and_spread(self, page, root):
        table = results(root).filter(state="finished")
        found = next(row for row in body(page) if row[:2] == ["short", "0.01"])
        values = table.filter(table[KERNEL] == "short", table["stages.model.optimiser.learning_rate"] == "0.01")
        values = values["validation nlpd"]
        mean, error = (float(part) for part in found[3].split(" ± "))
        assert mean == pytest.approx(values.mean(), rel=1e-3)
        assert error == pytest.approx(values.std() / len(values) ** 0.5, rel=0.1)

    def test_clicks_sort(self, page):
        page.uncheck("#over input >> nth=0")
        assert len(body(page)) == 9
        column = page.locator("#leaderboard thead button", has_text="test rmse")
        at = page.locator("#leaderboard thead th").all_inner_texts().index("test rmse")
        column.click()
        best_first = [float(row[at]) for row in body(page)]
        assert best_first == sorted(best_first) and page.locator("th[aria-sort=ascending]").count() == 1
        column.click()
        assert [float(row[at]) for row in body(page)] == best_first[::-1]

    def test_filters_filter(self, page):
        page.select_option("#filters select >> nth=1", label="it's <i>long</i>")
        assert {row[0] for row in body(page)} == {"it's <i>long</i>"}
        page.select_option("#filters select >> nth=1", label="all")
        page.fill("#find", "short 1.0")
        page.wait_for_function("document.querySelectorAll('#leaderboard tbody tr').length === 1")
        assert body(page)[0][:2] == ["short", "1.0"]
        page.fill("#find", "nothing")
        page.wait_for_function("document.querySelectorAll('#leaderboard tbody tr').length === 0")
        page.fill("#find", "")
        page.check("#each input >> nth=1")
        page.wait_for_function("document.querySelectorAll('#leaderboard tbody tr').length === 2")

    def test_other_scores(self, page):
        page.select_option("#by", label="test coverage")
        heads = page.locator("#leaderboard thead th").all_inner_texts()
        assert heads[3] == "test coverage"
        off = [abs(float(row[3].split(" ± ")[0]) - 0.9) for row in body(page)]
        assert off == sorted(off)

    def test_a_configuration_and_a_command_that_make_the_cell_again(self, page, root, tmp_path, monkeypatch):
        page.uncheck("#over input >> nth=0")
        page.locator("#leaderboard tbody tr").nth(3).click()
        identity = page.inner_text("#cell .among").split()[1].strip(",")
        page.click("text=copy the configuration")
        text = page.evaluate("navigator.clipboard.readText()")
        assert Cell({}, {}, Experiment.of(text)).identity == identity
        command = page.inner_text("#cell .command")
        assert command.startswith("mercer run ")
        shown = subprocess.run(
            ["sh", "-c", command.replace("mercer run", "printf '%s\\n'")], capture_output=True, text=True
        )
        path, *changes = shown.stdout.splitlines()
        assert Cell({}, {}, Experiment.read(path, changes)).identity == identity
        assert page.locator("#cell .picture .scatter").count() > 0

    def test_a_failed_cell(self, page):
        page.locator("#failed tbody tr").first.click()
        assert "Traceback of it" in page.inner_text("#cell .traceback")
        page.click("#cell [title=close]")
        assert not page.is_visible("#cell")

    def test_dark_and_narrow(self, page):
        colour = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        page.click("#theme")
        assert page.evaluate(colour) != light
        page.set_viewport_size({"width": 360, "height": 700})
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_plan_has_all_that_a_cell_is(root):
    plan = read_plan(root)
    cells = Sweep.read(plan.file).cells
    assert [plan.values(cell) for cell in plan.cells] == [cell.values for cell in cells]
    assert [cell.labels for cell in plan.cells] == [cell.labels for cell in cells]
