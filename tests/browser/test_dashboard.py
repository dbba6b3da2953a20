"""The dashboard in a real browser."""

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from gpushare.kube.api import UnauthorizedError
from gpushare.runtime.clock import SystemClock
from gpushare_cli import demo
from gpushare_cli.dashboard import command, picture as picture_of
from gpushare_cli.dashboard.access import Reviews
from testing import clusters
from testing.builders import make_inventory, make_node
from testing.fakes import http_server
from tests.browser.conftest import KEY, Dashboard, serving

pytestmark = pytest.mark.browser

Begin = Callable[..., Dashboard]
CARDS = "#groups .group:not([hidden]) li:not([hidden]) > .card"
expect.set_options(timeout=100_000)


def opened(page: Page, dashboard: Dashboard, gpus: int) -> None:
    page.goto(dashboard.address)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#shown")).to_have_text(f"{gpus:,} GPU{'' if gpus == 1 else 's'}")


@pytest.mark.parametrize("gpus", [2, 50, 1000])
def test_a_cluster_of_any_size_is_drawn_and_can_be_read_by_everyone(
    page: Page, dashboard: Begin, pictures: Path, gpus: int
) -> None:
    served = dashboard(clusters.small() if gpus == 2 else clusters.large(gpus))
    opened(page, served, gpus)
    settled(page, served)
    expect(page.locator(".card")).to_have_count(gpus)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=pictures / f"dashboard-{gpus}-{scheme}.png")
        assert not broken(page)


def settled(page: Page, dashboard: Dashboard) -> None:
    """Wait until all is drawn, with what is used."""
    dashboard.live.asked.wait()
    picture = dashboard.live.picture
    assert picture is not None
    page.wait_for_selector(f"body[data-version$='.{picture.version}']")


def broken(page: Page) -> str:
    """What axe finds. It takes a tenth of a second for each GPU, and those after the sixth node are as those before."""
    found = Axe().run(page, context={"exclude": [[".group:nth-child(n+7)"]]})
    return found.generate_report() if found.violations_count else ""


def test_no_size_of_window_hides_anything_beyond_its_edge(page: Page, dashboard: Begin, pictures: Path) -> None:
    opened(page, dashboard(clusters.large(50)), 50)
    cut = "all => all.filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map((e) => e.innerText)"
    for width in (320, 390, 768, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(".top, .bottom, #waiting td").evaluate_all(cut) == []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=pictures / f"window-{width}-{scheme}.png")
            assert not broken(page)


def test_cards_are_created_filled_and_emptied_by_the_change_itself(
    page: Page, dashboard: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when what is used is read again: no one does within this test."""
    monkeypatch.setattr(picture_of, "_USE_S", 3600.0)
    api = clusters.small()
    served = dashboard(api)
    opened(page, served, 2)
    settled(page, served)
    uuid = clusters.gpus(0, 2)[1].uuid
    for i in range(3):
        api.seed(clusters.NODES, make_node(make_inventory(15, node=f"fresh-{i}")))
        expect(page.get_by_text(f"fresh-{i}", exact=True).first).to_be_visible()
        clusters.add_pod(api, clusters.running(f"late-{i}", uuid, 5, on=clusters.name_of(0)))
        expect(page.get_by_text(f"late-{i}", exact=True).first).to_be_visible()
        api.vanish(f"/api/v1/namespaces/research/pods/late-{i}")
        expect(page.get_by_text(f"late-{i}", exact=True)).to_have_count(0)


def test_a_demonstration_says_what_it_is_and_changes_while_one_looks(page: Page) -> None:
    command = [sys.executable, "-m", "gpushare_cli", "dashboard", "--demo", "--port", "0"]
    with subprocess.Popen(command, env={}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        page.goto(process.stdout.readline())
        expect(page.locator("#notes")).to_have_text(demo.NOTE)
        expect(page.locator("#shown")).to_have_text("11 GPUs")
        expect(page.locator("#waiting tbody")).to_contain_text("free per GPU on")
        before = page.locator(".block").all_inner_texts()
        expect(page.locator(".block")).not_to_have_text(before, timeout=20_000)
        assert not broken(page)
        page.goto("about:blank")  # before its server ends
        process.terminate()


def test_a_bar_has_a_block_for_each_pod_and_shows_what_is_used(page: Page, dashboard: Begin) -> None:
    opened(page, dashboard(clusters.small()), 2)
    first = page.locator(".card").first
    expect(first.locator(".bottom")).to_contain_text("14 of 15 GiB, 11 used")
    expect(first.locator(".block")).to_have_text(["notebook-ada", "train-resnet"])
    widths = first.locator(".block").evaluate_all("found => found.map((block) => block.getBoundingClientRect().width)")
    assert widths[1] / widths[0] == pytest.approx(8 / 6, rel=0.05)
    expect(page.locator("#namespace option")).to_have_text(
        ["all", "notebooks: 6 GiB granted", "research: 8 GiB granted", "serving: 4 GiB granted"]
    )
    expect(first.locator(".over")).to_have_count(1)
    assert first.get_attribute("aria-label") == (
        "GPU 0 of gpu-0000, Tesla T4: 14 of 15 GiB granted to 2 pods; 11 GiB used; a pod uses more than it was"
        " granted; limits are advisory; healthy"
    )


def test_pods_that_wait_and_what_happened_are_told_in_words(page: Page, dashboard: Begin) -> None:
    opened(page, dashboard(clusters.small()), 2)
    row = page.locator("#waiting tbody tr")
    expect(row).to_contain_text("research/train-llm")
    expect(row).to_contain_text("needs 14 GiB on one GPU; free per GPU on gpu-0000: 1, 11 GiB")
    expect(page.locator("#happenings li:not([hidden])")).to_have_count(4)
    expect(page.locator("#happenings li.warning")).to_contain_text("research/train-llm")


def test_search_and_filters_are_kept_in_the_address(page: Page, dashboard: Begin) -> None:
    served = dashboard(clusters.large(50))
    opened(page, served, 50)
    page.fill("#search", "gpu-0002 l40s")
    expect(page.locator(CARDS)).to_have_count(8)
    expect(page.locator("#shown")).to_have_text("8 GPUs of 50")
    page.select_option("#which", "empty")
    expect(page.locator(CARDS)).not_to_have_count(8)
    some = page.locator(CARDS).count()
    expect(page).to_have_url(re.compile("which=empty"))
    page.reload()
    expect(page.locator("#shown")).to_have_text(f"{some} GPU{'s' if some > 1 else ''} of 50")
    assert page.input_value("#search") == "gpu-0002 l40s"
    expect(page).not_to_have_url(re.compile("key"))
    page.fill("#search", "")
    page.select_option("#which", "faulty")
    expect(page.locator(f"{CARDS}.faulty")).to_have_count(2)
    page.select_option("#which", "")
    expect(page.locator("#shown")).to_have_text("50 GPUs")
    page.select_option("#namespace", "vision")
    expect(page.locator("#shown")).to_have_text(re.compile("of 50$"))
    for label in page.locator(CARDS).all():
        assert "vision" in (label.text_content() or "")


def test_gpus_are_grouped_by_node_or_by_model(page: Page, dashboard: Begin) -> None:
    opened(page, dashboard(clusters.large(50)), 50)
    expect(page.locator(".group h3")).to_have_text([clusters.name_of(i) for i in range(7)])
    page.select_option("#group", "model")
    expect(page.locator(".group h3")).to_have_text(sorted(model for model, _, _ in clusters.MODELS))
    expect(page.locator(".card")).to_have_count(50)
    expect(page.locator(".card b").first).to_have_text("gpu-0001 GPU 0")


def test_everything_is_reached_by_keys(page: Page, dashboard: Begin) -> None:
    opened(page, dashboard(clusters.large(50)), 50)

    def focused() -> str:
        return str(page.evaluate("document.activeElement.dataset.key"))

    page.keyboard.press("ArrowRight")
    assert focused() == "gpu-0000 GPU-00000-0"
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused() == "gpu-0000 GPU-00000-0"
    page.keyboard.press("ArrowRight")
    assert focused() == "gpu-0000 GPU-00000-1"
    page.keyboard.press("ArrowDown")
    columns = page.evaluate(
        "getComputedStyle(document.querySelector('.group ul')).gridTemplateColumns.split(' ').length"
    )
    assert focused() == f"gpu-0000 GPU-00000-{1 + columns}"
    page.keyboard.press("End")
    assert focused() == "gpu-0006 GPU-00006-1"
    page.keyboard.press("Home")
    assert focused() == "gpu-0000 GPU-00000-0"
    assert page.locator(".card[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_be_visible()
    expect(page.locator("dialog h2")).to_have_text("GPU 0 of gpu-0000")
    assert not broken(page)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    assert focused() == "gpu-0000 GPU-00000-0"


def test_details_follow_the_cluster(page: Page, dashboard: Begin) -> None:
    api = clusters.small()
    opened(page, dashboard(api), 2)
    page.locator(".card").nth(1).click()
    expect(page.locator("dialog tbody tr")).to_have_count(1)
    clusters.add_pod(api, clusters.running("late", clusters.gpus(0, 2)[1].uuid, 5, on=clusters.name_of(0)))
    expect(page.locator("dialog tbody tr")).to_have_count(2)


def test_a_change_draws_nothing_but_its_own_card(page: Page, dashboard: Begin) -> None:
    api = clusters.large(1000)
    served = dashboard(api)
    opened(page, served, 1000)
    settled(page, served)
    page.evaluate(
        """() => {
          window.drawn = new Set();
          new MutationObserver((changes) => changes.forEach((change) => {
            const card = change.target.closest?.("[data-key]");
            if (card && change.type === "childList") window.drawn.add(card.dataset.key);
          })).observe(document.querySelector("#groups"), { childList: true, subtree: true });
        }"""
    )
    clusters.add_pod(api, clusters.running("late", "GPU-00100-6", 1, on=clusters.name_of(100)))
    expect(page.get_by_text("late", exact=True)).to_have_count(1)
    assert page.evaluate("[...window.drawn]") == ["gpu-0100 GPU-00100-6"]


MARKUP = "<img src=x onerror=window.hit=1><script>window.hit=1</script>\u202e"


def test_what_tenants_write_is_text_and_nothing_else(page: Page, dashboard: Begin) -> None:
    api = clusters.small()
    pod = clusters.running(MARKUP, clusters.gpus(0, 2)[1].uuid, 5, on=clusters.name_of(0), namespace=MARKUP)
    api.seed("/api/v1/namespaces/odd/pods", pod)
    found = clusters.event(pod, "GpuShareOdd", f"says {MARKUP}")
    api.seed("/api/v1/namespaces/odd/events", found)
    asks = clusters.waiting("asks", 3, message=MARKUP)
    asks["spec"]["containers"][0]["name"] = MARKUP
    asks["metadata"]["annotations"] = {"gpushare.dev/gpu-model": MARKUP}
    clusters.add_pod(api, asks)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    served = dashboard(api)
    opened(page, served, 2)
    shown = MARKUP.replace("\u202e", "\\u202e")
    expect(page.locator("#happenings")).to_contain_text(f"says {shown}")
    expect(page.locator("#waiting")).to_contain_text(shown)
    expect(page.locator(".card").nth(1).locator(".block").first).to_have_text(shown)
    page.locator(".card").nth(1).click()
    expect(page.locator("dialog")).to_contain_text(shown)
    assert page.evaluate("window.hit") is None
    assert page.locator("main img, main script, dialog img").count() == 0
    assert {url.split("/")[2] for url in asked} == {f"127.0.0.1:{served.port}"}


def test_the_policy_runs_no_script_that_is_not_a_file_of_the_page(page: Page, dashboard: Begin) -> None:
    opened(page, dashboard(clusters.small()), 2)
    tried = page.evaluate(
        """() => {
          const made = document.createElement("script");
          const tries = [
            () => { document.body.innerHTML += "<b>x</b>"; },
            () => { made.text = "window.hit = 1"; document.body.append(made); },
          ];
          return tries.map((attempt) => { try { attempt(); return "done"; } catch (error) { return error.name; } });
        }"""
    )
    assert tried == ["TypeError", "TypeError"]
    assert page.evaluate("window.hit") is None
    page.complaints.clear()  # type: ignore[attr-defined] # the browser says what it has refused


def test_a_page_of_another_origin_reads_nothing(page: Page, dashboard: Begin) -> None:
    served = dashboard(clusters.small())
    opened(page, served, 2)  # the browser has the key now
    sent: list[dict[str, str]] = []

    class Other(http_server.Handler):
        def do_GET(self) -> None:
            sent.append(dict(self.headers))
            self.send(200, b"{}")

    with http_server.serving(Other) as other:
        page.goto(other)
        read = page.evaluate(
            """async ([address, key]) => {
              const tries = [["no-cors", {}], ["cors", {}], ["cors", { "Gpushare-Key": key }]];
              return Promise.all(tries.map(([mode, headers]) =>
                fetch(address, { mode, headers, credentials: "include" })
                  .then((answer) => answer.text(), () => "refused")));
            }""",
            [f"http://127.0.0.1:{served.port}/picture", KEY],
        )
        kept = page.evaluate("Object.keys(localStorage).length")
    assert read == ["refused"] * 3
    assert kept == 0
    assert KEY not in repr(sent)  # another port of the same host is another user's, perhaps
    page.complaints.clear()  # type: ignore[attr-defined]


def test_without_the_key_the_page_says_where_it_is(page: Page, dashboard: Begin) -> None:
    served = dashboard(clusters.small())
    page.goto(f"http://127.0.0.1:{served.port}/")
    expect(page.locator("#connection")).to_contain_text("Refused. Open the address that gpushare dashboard has printed")
    assert page.locator(".card").count() == 0
    page.evaluate("(address) => { location.href = address; }", served.address)  # into the same tab
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator(".card")).to_have_count(2)
    expect(page).not_to_have_url(re.compile("key"))
    other = page.context.new_page()  # the browser has it for this port
    other.goto(f"http://127.0.0.1:{served.port}/")
    expect(other.locator(".card")).to_have_count(2)
    page.complaints.clear()  # type: ignore[attr-defined] # the browser says what was refused


@pytest.fixture
def guarded(dashboard: Begin) -> Iterator[Dashboard]:
    """For users who sign in: the token `of-research` may list the pods of this namespace, and no nodes."""
    live = dashboard(clusters.small()).live

    def api_of(token: str) -> Any:
        if token != "of-research":
            raise UnauthorizedError("Unauthorized")
        of = {"namespace": "research", "resource": "pods", "verb": "list"}
        allowed = lambda _path, body: {"status": {"allowed": body["spec"]["resourceAttributes"] == of}}  # noqa: E731
        return SimpleNamespace(create=allowed)

    reviews, pictures = Reviews(api_of, live.namespaces, SystemClock()), picture_of.ScopedPictures(live)
    live.asked.wait()
    stop = threading.Event()
    pictures.start(stop)
    with serving(live, picture=command.signed_in(reviews, pictures)) as served:
        yield served
    stop.set()


def test_a_user_signs_in_with_a_token_that_this_tab_alone_keeps(page: Page, guarded: Dashboard) -> None:
    address = f"http://127.0.0.1:{guarded.port}/"
    page.goto(address)
    expect(page.locator("#token")).to_be_focused()
    expect(page.locator("#connection")).to_have_text("Sign in with a token of the cluster.")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert not broken(page)
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_contain_text("does not accept this token")
    expect(page.locator("#gpus")).to_be_hidden()
    page.fill("#token", " of-research ")
    page.click("#sign-in button")
    for _ in range(2):
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator(".block")).to_have_text(["train-resnet"])
        expect(page.locator("#sign-in")).to_be_hidden()
        page.reload()
    assert "of-research" not in page.evaluate("JSON.stringify([localStorage, document.cookie, location.href])")
    other = page.context.new_page()
    other.goto(address)
    expect(other.locator("#sign-in")).to_be_visible()
    page.click("#sign-out")
    expect(page.locator("#sign-in")).to_be_visible()
    assert page.locator(".block").count() == 0
    page.complaints.clear()  # type: ignore[attr-defined] # the browser says what was refused


def test_what_a_token_showed_is_gone_with_it_and_one_that_shows_nothing_can_be_left(
    page: Page, guarded: Dashboard
) -> None:
    status = 401

    def answer(route: Route) -> None:
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"ETag": "x"}
        if status == 0:
            route.continue_()
        else:
            route.fulfill(status=status, body="" if status == 200 else "why not", headers=headers)

    page.route("**/picture", answer)
    page.goto(f"http://127.0.0.1:{guarded.port}/")
    page.fill("#token", "of-research")
    status = 200
    page.keyboard.press("Enter")
    expect(page.locator("#sign-in")).to_be_hidden()
    expect(page.locator("#connection")).to_have_text("Reading the cluster …")
    status = 0
    page.click(".card")
    status = 401
    expect(page.locator("#sign-in")).to_be_visible()
    expect(page.locator("dialog")).to_be_hidden()
    assert "train-resnet" not in page.content()
    for refused in (403, 503):
        status = refused
        page.fill("#token", "of-none")
        page.keyboard.press("Enter")
        expect(page.locator("#sign-out")).to_be_visible()
        page.reload()
        expect(page.locator("#connection")).to_have_text("why not")
        with page.expect_navigation():
            page.click("#sign-out")
        status = 401
        expect(page.locator("#sign-in")).to_be_visible()
    page.complaints.clear()  # type: ignore[attr-defined] # the browser says what was refused


def test_behind_a_proxy_that_adds_the_token_no_user_is_asked_for_one(page: Page, guarded: Dashboard) -> None:
    signed_in = threading.Event()
    signed_in.set()

    class Proxy(http_server.Handler):
        def do_GET(self) -> None:
            if not signed_in.is_set() and self.headers["Accept"] == "application/json":
                self.send(401, b"{}")
                return
            url = f"http://127.0.0.1:{guarded.port}{self.path}"
            given = {key: value for key, value in self.headers.items() if key.startswith(("Sec-Fetch-", "If-None"))}
            asked = urllib.request.Request(url, headers={**given, "Authorization": "Bearer of-research"})
            try:
                found = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked)
            except urllib.error.HTTPError as error:
                found = error
            body = found.read()
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    with http_server.serving(Proxy) as address:
        page.goto(address)
        expect(page.locator(".block")).to_have_text(["train-resnet"])
        expect(page.locator("#sign-in")).to_be_hidden()
        expect(page.locator("#sign-out")).to_be_hidden()
        signed_in.clear()
        expect(page.locator("#connection")).to_contain_text("Your session has ended: load the page again.")
        page.goto("about:blank")
    page.complaints.clear()  # type: ignore[attr-defined]


def test_a_lost_connection_is_told_and_found_again(page: Page, dashboard: Begin) -> None:
    api = clusters.small()
    live = dashboard(api).live
    with serving(live) as served:
        opened(page, served, 2)
    expect(page.locator("#connection")).to_contain_text("Not connected; this is the state of")
    clusters.add_pod(api, clusters.running("late", clusters.gpus(0, 2)[1].uuid, 5, on=clusters.name_of(0)))
    with serving(live, served.port):
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.get_by_text("late", exact=True)).to_have_count(1)
        page.goto("about:blank")
    page.complaints.clear()  # type: ignore[attr-defined]


def test_a_user_of_one_namespace_is_told_what_is_missing(page: Page, dashboard: Begin) -> None:
    api = clusters.small()
    clusters.forbid(api, lambda path: path == "/api/v1/nodes" or path.startswith("/api/v1/pods"))
    clusters.forbid(api, lambda path: "/namespaces/" in path and "/namespaces/research/" not in path)
    opened(page, dashboard(api), 1)
    expect(page.locator("#notes")).to_contain_text("only pods of research are shown")
    expect(page.locator(".bar.unsure")).to_have_count(1)
    assert "notebook-ada" not in page.content()
    assert "embed-api" not in page.content()


def test_the_theme_is_the_systems_unless_another_is_chosen(page: Page, dashboard: Begin) -> None:
    opened(page, dashboard(clusters.small()), 2)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.click("#theme")
    assert page.evaluate(ground) == light
    page.reload()
    expect(page.locator("#theme")).to_have_text("Theme: light")
    assert page.evaluate(ground) == light
    page.click("#theme")
    assert page.evaluate(ground) == dark


def test_colours_that_the_user_forces_keep_the_bars(page: Page, dashboard: Begin) -> None:
    page.emulate_media(forced_colors="active")
    opened(page, dashboard(clusters.small()), 2)
    expect(page.locator(".block").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.block')).forcedColorAdjust") == "none"
