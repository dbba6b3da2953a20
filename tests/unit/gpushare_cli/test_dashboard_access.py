"""Users who sign in to the dashboard: each sees what his own token may list, whatever others may see."""

import hashlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, cast
from unittest.mock import Mock

import pytest

from gpushare.kube import api as kube, client
from gpushare.kube.api import KubeApi
from gpushare.kube.credentials import Credentials
from gpushare.kube.transport import HttpReply
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.pages import Request, Response
from gpushare_cli.dashboard import access, command, picture
from gpushare_cli.dashboard.access import Reviews
from gpushare_cli.dashboard.command import Options, Site
from gpushare_cli.dashboard.picture import Live, ScopedPictures
from testing import clusters
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube

OWN = "research"
NOW = datetime.now(UTC) + timedelta(minutes=2)
ALL = {"nodes", "pods", "events"}
ONE = {"nodes", "pods research", "events research"}
COLLECTION = re.compile(r"/api/v1(?:/namespaces/(?!gpushare-system)([^/]+))?/(nodes|pods|events)")
"""What is used is told to all, of the pods that they see."""
RIGHTS = {
    "all": ALL,
    "one": ONE,
    "two": {*ONE, "pods serving"},
    "no-events": {"nodes", "pods"},
    "no-nodes": {"pods research", "events research"},
    "pods": {"pods", "events"},
}


class AsUser:
    """The API server for somebody with rights such as `pods research`; `pods` is those of all namespaces."""

    def __init__(self, api: FakeKube, rights: set[str]) -> None:
        self._api, self._rights = api, rights

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(path: str, *given: Any, **options: Any) -> Any:
            if (found := COLLECTION.fullmatch(path)) and not self.may_list(found[2], found[1] or ""):
                raise kube.ForbiddenError(path)
            return getattr(self._api, name)(path, *given, **options)

        return call

    def may_list(self, resource: str, namespace: str) -> bool:
        return bool({resource, f"{resource} {namespace}"} & self._rights)

    def create(self, _path: str, body: Any) -> Any:
        asked = body["spec"]["resourceAttributes"]
        assert (body["kind"], asked["verb"]) == ("SelfSubjectAccessReview", "list")
        return {"status": {"allowed": self.may_list(asked["resource"], asked["namespace"])}}


@dataclass
class World:
    """A dashboard whose threads only read, and its users by token."""

    api: FakeKube
    live: Live
    users: dict[str, Any] = field(default_factory=lambda: dict(RIGHTS))
    clock: ManualClock = field(default_factory=ManualClock)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pictures, self.reviews = ScopedPictures(self.live), Reviews(self.api_of, self.live.namespaces, self.clock)

    def api_of(self, token: str) -> KubeApi:
        self.asked.append(token)
        found = self.users.get(token, kube.UnauthorizedError("Unauthorized"))
        if isinstance(found, Exception):
            raise found
        return cast("KubeApi", AsUser(self.api, found))

    def page(self, token: str) -> bytes:
        """As soon as it is drawn."""
        scope = self.reviews.scope(f"Bearer {token}")
        if not self.pictures.page(scope)[1]:
            self.pictures.tick()
        return self.pictures.page(scope)[1]

    def draw(self) -> None:
        for live in (self.live, self.pictures):
            live.tick()


Reading = Callable[..., Live]


class Still(SystemClock):
    """Threads wait as they do; it is the same second for all."""

    def now(self) -> datetime:
        return NOW


@pytest.fixture
def reading() -> Iterator[Reading]:
    stop = threading.Event()

    def read(api: Any, *namespaces: str) -> Live:
        options = Options(namespace=namespaces)
        live = command.of_cluster(api, options, lambda: "research", Still())
        live.watched.start(stop)
        while not live.watched.is_read:
            stop.wait(0.01)
        live.tick()
        live.ask_use()
        live.tick()
        return live

    yield read
    stop.set()


@pytest.fixture
def world(reading: Reading) -> World:
    api = clusters.small()
    return World(api, reading(api))


@pytest.mark.parametrize("token", RIGHTS)
def test_a_user_sees_what_the_command_shows_to_one_with_these_rights(
    token: str, world: World, reading: Reading
) -> None:
    whose = sorted(right[5:] for right in RIGHTS[token] if right.startswith("pods "))
    theirs = reading(AsUser(world.api, RIGHTS[token]), *whose)
    world.page(token)  # it is made, and use is known from the next tick on
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: clusters.add_pod(world.api, clusters.running("late", "GPU-00000-1", 5, on="gpu-0000", minutes=1)),
        lambda: world.api.vanish("/api/v1/namespaces/serving/pods/embed-api"),
        lambda: clusters.add_pod(world.api, clusters.waiting("secret", 3, namespace="notebooks")),
        lambda: world.api.vanish("/api/v1/nodes/gpu-0000"),
    ]
    before = said = expected = whole = b""
    for change in changes:
        change()
        for _ in range(500):
            world.draw()
            theirs.tick()
            said, expected, whole = world.page(token), theirs.page()[1], world.live.page()[1]
            if said == expected and whole != before:
                break
            threading.Event().wait(0.01)
        assert (said, whole != before) == (expected, True)
        before = whole


def test_of_other_namespaces_nothing_is_told_to_users_side_by_side_nor_to_one_of_nodes_alone(world: World) -> None:
    world.users |= {"own": {"nodes", "pods notebooks", "events notebooks"}, "nodes": {"nodes"}}
    tokens = ("one", "own", "nodes", "all")
    for token in tokens:
        world.page(token)
    world.draw()
    pages = {token: world.page(token) for token in tokens}
    names = {"one": b"train-resnet", "own": b"notebook-ada", "nodes": b"gpu-0000"}
    for token, name in names.items():
        assert name in pages[token]
        others = {b"train-resnet", b"train-llm", b"notebook-ada", b"embed-api", b"GpuShareNoRoom"} - {name}
        mine = {b"train-llm", b"GpuShareNoRoom"} if token == "one" else set()
        assert [other for other in others - mine if other in pages[token]] == []
    assert all(name in pages["all"] for name in names.values())
    assert b"no pod is shown" in pages["nodes"]


def test_who_loses_rights_sees_less_a_minute_later_and_who_lost_all_nothing(world: World) -> None:
    assert b"embed-api" in world.page("two")
    world.users["two"] = ONE
    world.clock.at += 44
    assert b"embed-api" in world.page("two")
    world.clock.at += 1
    assert b"embed-api" not in world.page("two")
    for lost, error in (({"pods other"}, kube.ForbiddenError), (kube.UnauthorizedError("x"), kube.UnauthorizedError)):
        world.users["two"] = lost
        world.clock.at += 60
        with pytest.raises(error):
            world.page("two")


def test_that_the_last_pod_of_a_namespace_was_deleted_is_told_longer_than_rights_are_kept(world: World) -> None:
    world.users["own"] = {"pods serving"}
    assert b"embed-api" in world.page("own")
    world.api.vanish("/api/v1/namespaces/serving/pods/embed-api")
    while b"deleted from" not in world.page("own"):
        world.draw()
    world.clock.at += 60
    assert b"deleted from" in world.page("own")


def test_the_api_server_is_asked_once_a_minute_and_about_refused_tokens_a_little_later(world: World) -> None:
    world.users["nothing"] = set()
    refused: dict[str, type[kube.KubeError]] = {"none": kube.UnauthorizedError, "nothing": kube.ForbiddenError}
    for _ in range(3):
        world.page("one")
        for token, error in refused.items():
            with pytest.raises(error, match=r"does not accept this token|You may list neither"):
                world.page(token)
    assert world.asked == ["one", "none", "nothing"]
    world.clock.at += 5
    world.users |= dict.fromkeys(refused, ONE)
    assert world.page("none") == world.page("one")
    world.clock.at += 54
    with pytest.raises(kube.ForbiddenError):
        world.page("nothing")
    world.clock.at += 1
    assert world.page("nothing") == world.page("one")
    assert world.asked == ["one", "none", "nothing", "none", "nothing", "one"]
    assert len(world.reviews._refusals) == 0, "what is older is not remembered"


def test_without_the_api_server_nothing_is_shown_to_new_users(world: World) -> None:
    world.page("one")
    world.users = dict.fromkeys(("one", "all"), kube.UnreachableError("down"))
    assert b"train-resnet" in world.page("one")
    world.clock.at += 60
    for token in ("one", "all"):
        with pytest.raises(kube.UnreachableError, match="down"):
            world.page(token)


def test_few_reviews_that_have_begun_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_BEGUN", 2)
    monkeypatch.setattr(AsUser, "create", Mock(side_effect=[{"status": {"allowed": True}}, {"status": 1}] * 4))
    world.users |= {f"t{i}": ONE for i in range(4)}
    for token in sorted(world.users.keys() - RIGHTS.keys()):
        with pytest.raises(kube.ServerFaultError, match="It is not known what you may list"):
            world.page(token)
    assert len(world.reviews._begun) == 2


@pytest.mark.parametrize("answer", [{}, {"status": {"allowed": "true"}}, {"status": 1}])
def test_an_odd_answer_allows_nothing(answer: Any, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsUser, "create", lambda *_: answer)
    with pytest.raises((kube.ForbiddenError, kube.ServerFaultError)):
        world.page("all")


@pytest.mark.parametrize(("each_s", "pause_s", "tries"), [(0.03, 5, 1), (0.06, 5, 2), (0.08, 20, 0), (1, 5, 0)])
def test_of_many_namespaces_slow_answers_are_kept_for_the_next_try_and_none_longer_than_a_minute(
    each_s: float, pause_s: int, tries: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = AsUser.create, list[str]()
    reviews = Reviews(world.api_of, lambda: [f"n{i:03d}" for i in range(499)] + [OWN], world.clock)

    def slow(user: AsUser, path: str, body: Any) -> Any:
        world.clock.at += each_s
        asked.append(str(body))
        return ask(user, path, body)

    monkeypatch.setattr(AsUser, "create", slow)
    began, found = world.clock.at, None
    for number in range(1, 9):
        if number == tries:
            found = reviews.scope("Bearer one")
            assert len(asked) == len({*asked})
            break
        with pytest.raises(kube.UnreachableError, match="too slowly"):
            reviews.scope("Bearer one")
        world.clock.at += pause_s
    assert (found is not None) == (tries > 0)
    assert found is None or found.namespaces == (OWN,)
    assert found is None or reviews._scopes.popitem()[1][0] == began + 60, "since the first question"
    assert tries or len(asked) > len({*asked}), "old answers count no more"


def test_a_few_reviews_at_the_same_time_and_one_of_a_token_keep_no_one_waiting(world: World) -> None:
    world.page("all")
    go, reviewing, api_of = threading.Event(), threading.Semaphore(0), world.api_of

    def waits(token: str) -> KubeApi:
        reviewing.release()
        go.wait()
        return api_of(token)

    world.reviews._api_of = waits
    world.users |= {f"t{i}": ONE for i in range(4)}
    scopes: list[access.Scope] = []
    threads = [
        threading.Thread(target=lambda i=i: scopes.append(world.reviews.scope(f"Bearer t{i}")), daemon=True)
        for i in range(4)
    ]
    for number, thread in enumerate(threads):
        thread.start()
        reviewing.acquire()
        for token in ("t0", *(["two"] if number == 3 else [])):
            with pytest.raises(kube.TooManyRequestsError, match="try again"):
                world.page(token)
        assert world.page("all")
    go.set()
    for thread in threads:
        thread.join()
    assert scopes == [world.reviews.scope("Bearer one")] * 4


def test_who_was_known_does_not_wait_behind_tokens_that_anybody_may_make_up(world: World) -> None:
    world.page("all")
    world.clock.at += 61
    world.reviews._asking |= {b"1", b"2", b"3", b"4"}
    with pytest.raises(kube.TooManyRequestsError):
        world.page("two")
    assert b"embed-api" in world.page("all")


def test_rights_that_are_known_count_while_they_are_asked_for_again_and_where_that_fails(world: World) -> None:
    world.page("two")
    world.clock.at += 50
    world.reviews._asking.add(hashlib.sha256(b"two").digest())  # by another page of the same user
    assert b"embed-api" in world.page("two")
    world.reviews._asking.clear()
    world.users["two"] = kube.UnreachableError("down")
    assert b"embed-api" in world.page("two")
    world.clock.at += 10
    with pytest.raises(kube.UnreachableError):
        world.page("two")


def test_until_the_cluster_is_read_no_user_is_taken_for_one_without_namespaces(world: World) -> None:
    unread = command.of_cluster(world.api, Options(), lambda: "", SystemClock())
    reviews = Reviews(world.api_of, unread.namespaces, world.clock)
    with pytest.raises(kube.UnreachableError, match="has not read"):
        reviews.scope("Bearer one")


def test_many_tokens_and_many_rights_take_memory_with_a_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_TOKENS", 20)
    monkeypatch.setattr(picture, "_SCOPED", 2)
    world.users |= {f"t{i}": ONE for i in range(1000)}
    for i in range(1000):
        world.page(f"t{i}")
        with pytest.raises(kube.UnauthorizedError):
            world.page(f"x{i}")
    assert (len(world.reviews._scopes), len(world.reviews._refusals), len(world.pictures._lives)) == (20, 20, 1)
    world.page("two")
    with pytest.raises(kube.TooManyRequestsError, match="Too many users"):
        world.page("pods")
    monkeypatch.setattr(picture, "_LOOKS_S", 0.0)
    world.draw()
    monkeypatch.undo()
    world.page("pods")
    assert len(world.live.watched._told) == 2, "what is dropped is not told of changes"
    with monkeypatch.context() as small:
        small.setattr(picture, "_SCOPED_SIZE", 1)
        for token in ("two", "one"):  # drawn or not
            with pytest.raises(kube.TooManyRequestsError):
                world.page("one")
            world.pictures._lives.clear()
            world.pictures.page(world.reviews.scope(f"Bearer {token}"))
    world.draw()
    monkeypatch.setattr(access, "_NAMESPACES", 2)  # of three
    world.clock.at += 60
    assert b"embed-api" not in world.page("two")


def test_no_one_waits_for_anothers_first_picture_and_one_that_was_just_asked_for_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = [world.reviews.scope(f"Bearer {token}") for token in ("one", "two")]
    assert [world.pictures.page(scope)[1] for scope in scopes] == [b"", b""]
    world.pictures.tick()
    assert all(b"train-resnet" in world.pictures.page(scope)[1] for scope in scopes)
    page, third = Live.page, world.reviews.scope("Bearer pods")
    monkeypatch.setattr(Live, "page", lambda live: (world.pictures.tick(), page(live))[1])
    world.pictures.page(third)
    assert {*world.pictures._lives} == {*scopes, third}


def test_a_picture_that_fails_is_made_again_and_the_others_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("one", "two"):
        world.page(token)
    [first, second] = world.pictures._lives.values()
    monkeypatch.setattr(first, "tick", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.pictures.tick()
    world.pictures.tick()
    assert list(world.pictures._lives.values()) == [second]
    assert b"train-resnet" in world.page("one")


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer  all", "Basic all", "all", "Bearer a b", "Bearer all\n", "Bearer \u00e9"],
)
def test_what_is_no_token_is_not_sent_anywhere(header: str, world: World) -> None:
    with pytest.raises(kube.UnauthorizedError, match="Sign in"):
        world.reviews.scope(header)
    assert world.asked == []


def test_a_users_token_is_sent_without_the_dashboards_own_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """By which the API server would take him for the dashboard."""
    own = Credentials(server="https://a", ca_file="ca", cert_file="c", key_file="k", token_source=lambda: "own")
    transport = Mock()
    transport.return_value.call.return_value = HttpReply(what="", status=200, data=b"", date=None)
    monkeypatch.setattr(client, "of_kubeconfig", lambda *_: own)
    monkeypatch.setattr(client, "Transport", transport)
    client.connect_as("config")("theirs").ask("/")
    [[bare], _] = transport.call_args
    assert (bare.ca_file, bare.cert_file, bare.key_file) == ("ca", None, None)
    assert transport.return_value.call.call_args[0][3]["Authorization"] == "Bearer theirs"


def ask(world: World, path: str = "/picture", **headers: str) -> Response:
    picture = command.signed_in(world.reviews, world.pictures)
    site = Site(assets=command.assets(), picture=picture, hosts=frozenset({"gpus.example"}))
    environ = {f"HTTP_{name.upper()}": value for name, value in {"host": "GPUs.example:443", **headers}.items()}
    return site.respond(Request(method="GET", path=path, length=0, body=io.BytesIO(), received=0.0, environ=environ))


def test_every_answer_says_what_is_wrong(world: World) -> None:
    world.users |= {"nothing": set(), "down": kube.UnreachableError("down")}
    assert ask(world, "/").status == ask(world, "/healthz", host="10.0.0.1:8127").status == HTTPStatus.OK
    for host in ("evil.example", "gpus.example.evil.example", "10.0.0.1"):
        assert ask(world, host=host, authorization="Bearer all").status == HTTPStatus.MISDIRECTED_REQUEST
    for token, status in {"none": 401, "nothing": 403, "down": 503}.items():
        answer = ask(world, authorization=f"Bearer {token}", x_forwarded_user="admin", impersonate_user="admin")
        assert (answer.status, b"train" in answer.body) == (status, False)
        assert answer.body.startswith(b"It is not known what you may list: down") == (token == "down")
    assert ask(world, x_forwarded_user="admin").headers["WWW-Authenticate"] == "Bearer"
    assert ask(world, authorization="bearer one", sec_fetch_site="cross-site").status == HTTPStatus.FORBIDDEN
    world.page("one")
    one, everything = (ask(world, authorization=f"Bearer {token}") for token in ("one", "all"))
    assert one.status == everything.status == HTTPStatus.OK
    tag = everything.headers["ETag"]
    assert ask(world, authorization="Bearer all", if_none_match=tag).status == HTTPStatus.NOT_MODIFIED
    assert ask(world, authorization="Bearer one", if_none_match=tag).body == one.body
    assert ask(world, if_none_match=tag).status == HTTPStatus.UNAUTHORIZED
